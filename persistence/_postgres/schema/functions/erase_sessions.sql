-- Delete facts of a session, at most `most`; with the last ones the session's row, also if it is a tombstone. Without
-- `p_all` a session that is being deleted is skipped: the operation that deletes it needs its last fact number and
-- keeps refusing runs.
create or replace function erase_sessions(p_agent text, p_all boolean, most int)
returns table (sessions int, facts int, more boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
declare held sessions;
begin
  sessions := 0; facts := 0; more := false;
  select s.* into held from sessions s where s.agent = p_agent for update;
  if held.agent is not null and (p_all or not held.is_deleting) then
    delete from session_facts f where f.ctid = any(array(
      select n.ctid from session_facts n where n.agent = p_agent order by n.number limit most));
    get diagnostics facts = row_count;
    more := facts = most;
    if not more then
      delete from sessions s where s.agent = p_agent;
      get diagnostics sessions = row_count;
    end if;
  end if;
  return next;
end $$;
