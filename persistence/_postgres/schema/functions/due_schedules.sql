-- Return the schedules of agents of these shards that are due within `p_within` by the database's clock.
create or replace function due_schedules(p_shards text[], p_within interval, p_limit int)
returns table (tenant text, name text, agent text, payload json, cron text, timezone text,
  at timestamptz, catch_up text, is_paused boolean, base_at timestamptz, next_at timestamptz,
  last_at timestamptz, revision bigint, in_s double precision)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare horizon timestamptz := present() + p_within;
begin
  return query
    select s.tenant, s.name, s.agent, s.payload, s.cron, s.timezone, s.at, s.catch_up, s.is_paused,
        s.base_at, s.next_at, s.last_at, s.revision,
        extract(epoch from s.next_at - present())::double precision
      from schedules s left join types y on y.type = agent_type(s.agent)
      where s.next_at is not null and not s.is_paused and s.next_at <= horizon
        and shard_of(s.agent, s.hash, y.mode, y.partitions) = any(p_shards)
      order by s.next_at, s.tenant, s.name limit p_limit;
end $$;
