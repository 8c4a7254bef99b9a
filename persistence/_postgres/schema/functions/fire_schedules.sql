-- Write ticks: each advances its schedule and, if it has a body, writes its message, both or neither. Returns a row
-- per tick: whether it was written, and the arrival number of its pending message. If the answer of a call was lost,
-- a repeated call returns the message again.
create or replace function fire_schedules(f_shard text[], f_owner text[], f_epoch bigint[],
  t_tenant text[], t_name text[], t_revision bigint[], t_base timestamptz[], t_next timestamptz[],
  t_agent text[], t_hash bigint[], t_sender text[], t_id text[], t_body text[])
returns table (i int, moved boolean, arrival bigint)
language plpgsql set search_path from current set enable_seqscan = off
  set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare held text[]; done int[]; this timestamptz;
begin
  perform lock_types(t_agent);
  select coalesce(array_agg(l.shard), '{}') into held from (
    select s.shard from unnest(f_shard, f_owner, f_epoch) f(shard, owner, epoch)
      join shards s on s.shard = f.shard and s.owner is not distinct from f.owner and s.epoch = f.epoch
      order by s.shard for share of s) l;
  -- The next statements have a younger snapshot than the one that locks: they compare the revision again.
  perform 1 from (select t.tenant, t.name from unnest(t_tenant, t_name) t(tenant, name)
      order by t.tenant, t.name offset 0) t
    cross join lateral (select from schedules n
      where n.tenant = t.tenant and n.name = t.name offset 0 for no key update) s;
  this := present();
  with mine as (
    update schedules s set base_at = t.base_at, next_at = t.next_at, revision = nextval('schedule_revisions'),
        last_at = case when t.body is null then s.last_at else s.next_at end
      from (select u.*, n.ctid as place, shard_of(u.agent, u.hash, y.mode, y.partitions) as shard
        from unnest(t_tenant, t_name, t_revision, t_base, t_next, t_agent, t_hash, t_body)
          with ordinality u(tenant, name, revision, base_at, next_at, agent, hash, body, ord)
        cross join lateral (select m.ctid, m.revision, m.next_at, m.is_paused from schedules m
          where m.tenant = u.tenant and m.name = u.name offset 0) n
        left join types y on y.type = agent_type(u.agent)
        where n.revision = u.revision and not n.is_paused and n.next_at is not null
          and (u.body is null or n.next_at <= this)) t
      where s.ctid = t.place and t.shard = any(held)
      returning t.ord)
    select coalesce(array_agg(m.ord::int), '{}') into done from mine m;
  insert into inbox (agent, sender, message_id, shard, hash, body)
    select t.agent, t.sender, t.id, shard_of(t.agent, t.hash, y.mode, y.partitions), t.hash, t.body::json
      from unnest(t_agent, t_hash, t_sender, t_id, t_body)
        with ordinality t(agent, hash, sender, id, body, ord)
      left join types y on y.type = agent_type(t.agent)
      where t.ord = any(done) and t.body is not null
      order by t.ord
    on conflict do nothing;
  return query
    select t.ord::int, t.ord = any(done), n.arrival
      from unnest(t_agent, t_sender, t_id) with ordinality t(agent, sender, id, ord)
      left join lateral (select * from inbox n
        where n.agent = t.agent and n.sender = t.sender and n.message_id = t.id offset 0) n
        on n.state = 'p' and n.shard = any(held);
end $$;
