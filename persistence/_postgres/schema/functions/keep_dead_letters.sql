-- Write messages that cannot be delivered as dead letters, each once: their ids are kept in the inbox. `l_shard` is
-- the shard that read the message; its owner publishes the dead letter. An undecodable message with the agent, sender
-- and problem of an existing dead letter only raises that one's count and is not published.
create or replace function keep_dead_letters(l_shard text[], l_agent text[], l_hash bigint[], l_sender text[],
  l_id text[], l_body text[], l_reason text[], l_problem text[]) returns void
language plpgsql set search_path from current as $$
declare fresh int[];
begin
  with kept as (
    insert into inbox (agent, sender, message_id, shard, hash, state)
      select l.agent, l.sender, l.id, l.shard, l.hash, 'd'
        from unnest(l_agent, l_sender, l_id, l_shard, l_hash) with ordinality
          l(agent, sender, id, shard, hash, ord)
        order by l.ord on conflict do nothing
      returning agent, sender, message_id)
  select array_agg(l.ord) into fresh
    from unnest(l_agent, l_sender, l_id) with ordinality l(agent, sender, id, ord)
    join kept k on k.agent = l.agent and k.sender = l.sender and k.message_id = l.id;
  if fresh is null then return; end if;
  with letters as materialized (
    select min(l.ord) as ord, count(*)::int as times, (
        select max(d.id) from (select m.id from dead_letters m
          where m.agent = l.agent and m.sender = l.sender and m.reason = 'undecodable'
            and hashtextextended(m.last_error, 0) = hashtextextended(l.problem, 0)
            and l.reason = 'undecodable' offset 0) d) as known
      from unnest(l_agent, l_sender, l_reason, l_problem) with ordinality l(agent, sender, reason, problem, ord)
      where l.ord = any(fresh)
      group by l.agent, l.sender, l.reason, l.problem, case when l.reason <> 'undecodable' then l.ord end),
  counted as (
    update dead_letters d
      set times = d.times + (select sum(l.times) from letters l where l.known = d.id)
      where d.id = any(array(select l.known from letters l))),
  kept as (
    insert into dead_letters (agent, sender, message_id, body, reason, attempts, last_error, times)
      select l_agent[l.ord], l_sender[l.ord], l_id[l.ord], l_body[l.ord]::json, l_reason[l.ord], 0,
          l_problem[l.ord], l.times
        from letters l where l.known is null order by l.ord
      returning id, agent, sender, message_id, body, reason)
  insert into outbox (sender, target, message_id, shard, target_hash, dead, body)
    select k.sender, 'dead:' || k.agent, 'dl-' || k.id, l_shard[l.ord], l_hash[l.ord], k.reason, k.body
      from kept k
      join letters l on l_agent[l.ord] = k.agent and l_sender[l.ord] = k.sender and l_id[l.ord] = k.message_id
      order by k.id;
end $$;
