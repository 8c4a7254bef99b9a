-- Take facts of a session away, at most `most`; with the last ones its row, also that of a tombstone. Without `p_all` one
-- that is being deleted stays, for whoever deletes it: its number is to be kept, and it takes no run.
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
