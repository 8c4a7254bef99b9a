-- Change follows, in the given order. Returns a row per change: the number of the follow that exists afterwards; for
-- an unfollow (null mode) the number of its end, or null if there was no follow.
create or replace function apply_follows(p_agent text[], p_hash bigint[], p_topic text[], p_mode text[])
returns table (i int, number bigint)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare c record;
begin
  perform lock_follows(true);
  for c in
    select n.ord::int as i, n.agent, n.hash, n.topic, left(n.mode, 1)::"char" as mode,
        shard_of(n.agent, n.hash, y.mode, y.partitions) as shard
      from unnest(p_agent, p_hash, p_topic, p_mode) with ordinality n(agent, hash, topic, mode, ord)
      left join types y on y.type = agent_type(n.agent)
      order by n.ord
  loop
    i := c.i;
    number := null;
    if c.mode is null then
      update follows f set until = nextval('follow_numbers')
        where f.topic = c.topic and f.shard = c.shard and f.follower = c.agent and f.until is null
        returning f.until into number;
    else
      insert into follows as f (topic, shard, follower, mode, hash)
        values (c.topic, c.shard, c.agent, c.mode, c.hash)
        on conflict (topic, shard, follower) where until is null do update set mode = excluded.mode
        returning f.since into number;
    end if;
    return next;
  end loop;
end $$;
