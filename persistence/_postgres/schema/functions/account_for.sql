-- Create the missing shards of these agents, so that their messages are read. Returns the number of new shards.
create or replace function account_for(a_agent text[], a_hash bigint[]) returns int
language plpgsql set search_path from current as $$
declare made int;
begin
  perform lock_types(a_agent);
  insert into shards (shard, type)
    select x.shard, x.type from (
      select distinct shard_of(a.agent, a.hash, y.mode, y.partitions) as shard,
          agent_type(a.agent) as type
        from unnest(a_agent, a_hash) a(agent, hash)
        left join types y on y.type = agent_type(a.agent)
        where y.mode is distinct from 'partitioned') x
      order by x.shard on conflict do nothing;
  get diagnostics made = row_count;
  if made > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return made;
end $$;
