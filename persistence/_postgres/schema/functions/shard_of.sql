-- The shard of an agent whose type is declared as `mode`; u:<type> if the type is not declared.
create or replace function shard_of(agent text, hash bigint, mode text, partitions int) returns text
  language sql immutable parallel safe
  return case mode
    when 'partitioned' then 'p:' || agent_type(agent) || ':' || (hash % partitions)
    when 'instance' then
      'i:' || case when strpos(split_part(agent, '/', 1), ':') > 0 then '' else 'default:' end || agent
    else 'u:' || agent_type(agent) end;
