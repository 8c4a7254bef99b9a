-- Take facts of a session away, at most `most`; with the last ones its row, also that of a tombstone.
create or replace function erase_sessions(p_agent text, most int)
returns table (sessions int, facts int, more boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  sessions := 0;
  perform 1 from sessions s where s.agent = p_agent for update;
  delete from session_facts f where f.ctid = any(array(
    select n.ctid from session_facts n where n.agent = p_agent order by n.number limit most));
  get diagnostics facts = row_count;
  more := facts = most;
  if not more then
    delete from sessions s where s.agent = p_agent;
    get diagnostics sessions = row_count;
  end if;
  return next;
end $$;
