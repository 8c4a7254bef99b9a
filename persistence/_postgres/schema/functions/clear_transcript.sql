-- Delete a session's conversation: its turns, its cut and its counters.
create or replace function clear_transcript(p_agent text, p_session text)
returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  perform 1 from transcripts s where s.agent = p_agent and s.session = p_session for update;
  -- Without the lock a conversation may begin between the two deletions, and would lose its row but not its turns.
  if not found then return; end if;
  delete from transcript_turns t where t.ctid = any(array(
    select n.ctid from transcript_turns n where n.agent = p_agent and n.session = p_session));
  delete from transcripts s where s.ctid = any(array(
    select n.ctid from transcripts n where n.agent = p_agent and n.session = p_session));
end $$;
