-- The tenant that an agent's id names, or 'default'.
create or replace function agent_tenant(agent text) returns text language sql immutable parallel safe
  return case when strpos(split_part(agent, '/', 1), ':') > 0 then split_part(agent, ':', 1)
              else 'default' end;
