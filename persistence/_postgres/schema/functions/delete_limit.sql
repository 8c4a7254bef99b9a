-- Delete a limit and notify all hosts. Returns false if it did not exist.
create or replace function delete_limit(p_scope text) returns boolean
language plpgsql set search_path from current as $$
begin
  delete from limits l where l.scope = p_scope;
  if not found then return false; end if;
  perform pg_notify(current_schema() || ':all', '[["limits",null,null]]');
  return true;
end $$;
