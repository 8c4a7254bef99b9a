-- The type in an agent's id: `desk` of `tenant:desk/anna`.
create or replace function agent_type(agent text) returns text language sql immutable parallel safe
  return split_part(split_part(agent, '/', 1), ':', -1);
