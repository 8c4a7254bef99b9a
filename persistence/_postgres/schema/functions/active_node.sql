-- The id of the last turn on the active path of a conversation.
create or replace function active_node(p_agent text, p_session text) returns text
language plpgsql stable set search_path from current as $$
begin
  return (select t.id from turns_on_path(p_agent, p_session, 0, 1, true) t);
end $$;
