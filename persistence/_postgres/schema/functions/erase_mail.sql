-- Delete what is on its way to agents of a tenant or to one agent: schedules, posts with their fan-outs (tenant
-- only), and messages and dead letters that the broker has not delivered. Dead letters of these agents are found by
-- reading all dead letters by number, ten times `most` per call, after `p_after`.
create or replace function erase_mail(p_tenant text, p_agent text, p_after bigint, most int)
returns table (schedules int, posts int, messages int, letters int, after bigint)
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_column
declare seqs bigint[]; last bigint; low text := p_tenant || ':'; high text := p_tenant || ';';
begin
  posts := 0;
  delete from schedules s where s.ctid = any(array(
    select n.ctid from schedules n where n.tenant = p_tenant and (p_agent is null or n.agent = p_agent)
      order by n.tenant, n.name limit most for update));
  get diagnostics schedules = row_count;
  delete from outbox o where o.ctid = any(array(
    select n.ctid from outbox n cross join lateral (
        select case when n.dead is not null then substr(n.target, 6)
          when n.shard like '_:~topic%' then substr(n.target, 7) else n.target end as address) t
      where case when p_agent is null then agent_tenant(t.address) = p_tenant else t.address = p_agent end
      limit most for update of n));
  get diagnostics messages = row_count;
  if p_agent is null then
    seqs := array(select n.seq from posts n
      where (p_tenant = 'default' or n.topic > low and n.topic < high) and agent_tenant(n.topic) = p_tenant
      limit most);
    delete from fanouts f where f.seq = any(seqs);
    delete from posts p where p.seq = any(seqs);
    get diagnostics posts = row_count;
  end if;
  with page as materialized (
    select n.id, case when p_agent is null then agent_tenant(n.agent) = p_tenant else n.agent = p_agent end as is_meant
      from dead_letters n where n.id > p_after order by n.id limit 10 * most),
  counted as (select p.*, count(*) filter (where p.is_meant) over (order by p.id) as nth from page p),
  walked as materialized (select c.* from counted c where c.nth <= most),
  gone as (delete from dead_letters d where d.id = any(array(select w.id from walked w where w.is_meant)) returning 1)
  select (select count(*) from gone), max(w.id) into letters, last from walked w;
  after := case when last is not null then last
    when greatest(schedules, messages, posts) = most then p_after end;
  return next;
end $$;
