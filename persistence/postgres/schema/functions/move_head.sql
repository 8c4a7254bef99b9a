-- Make a turn of a conversation the active one, and the last cut on its path the one that counts. The conversation's
-- row is held from now on.
create or replace function move_head(p_agent text, p_session text, p_ordinal int) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
declare t transcripts; c transcript_cuts;
begin
  select n.* into t from transcripts n where n.agent = p_agent and n.session = p_session for update;
  if not found or coalesce(t.path @> p_ordinal, true) and not exists (select from transcript_turns n
      where n.agent = p_agent and n.session = p_session and n.ordinal > p_ordinal) then
    return;  -- it is the last one
  end if;
  if t.cut_upto >= 0 then  -- one of before sessions is kept nowhere else
    insert into transcript_cuts (agent, session, upto, strategy, run_id, summary, at)
      values (p_agent, p_session, t.cut_upto, t.cut_strategy, t.cut_run, t.cut_summary, t.cut_at)
      on conflict do nothing;
  end if;
  t.path := path_to(p_agent, p_session, p_ordinal);
  select n.* into c from transcript_cuts n
    where n.agent = p_agent and n.session = p_session and n.upto <= p_ordinal and t.path @> n.upto
    order by n.upto desc limit 1;
  update transcripts n set head = p_ordinal, path = t.path, cut_upto = coalesce(c.upto, -1),
      cut_strategy = c.strategy, cut_run = c.run_id, cut_summary = c.summary, cut_at = c.at
    where n.agent = p_agent and n.session = p_session;
end $$;
