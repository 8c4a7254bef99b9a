-- Return the fact that a run was submitted to a session. In the statement of the submit, it returns the fact that the
-- submit has written.
create or replace function queued_fact(f_agent text, f_run text) returns table (number int, ahead int, at timestamptz)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query select q.number, q.ahead, q.at
    from (select * from session_facts n where n.run_id = f_run and n.kind = 'queued' offset 0) q
    where q.agent = f_agent order by q.number limit 1;
end $$;
