-- Make a turn of a conversation the active one, and the last cut on its path the valid one; with -1 the next turn
-- starts a new path. Locks the conversation's row.
create or replace function move_head(p_agent text, p_session text, p_ordinal int) returns void
language plpgsql set search_path from current set enable_seqscan = off
set enable_sort = off as $$
declare t transcripts; c transcript_cuts; last int;
begin
  select n.* into t from transcripts n where n.agent = p_agent and n.session = p_session for update;
  last := (select n.ordinal from transcript_turns n where n.agent = p_agent and n.session = p_session
    order by n.ordinal desc limit 1);
  if t.agent is null or coalesce(t.path @> p_ordinal, true) and last = p_ordinal then
    return;  -- the next turn follows it anyway
  end if;
  if t.cut_upto >= 0 then  -- a cut made before sessions existed has no other copy
    insert into transcript_cuts (agent, session, upto, strategy, run_id, summary, at)
      values (p_agent, p_session, t.cut_upto, t.cut_strategy, t.cut_run, t.cut_summary, t.cut_at)
      on conflict do nothing;
  end if;
  t.path := path_to(p_agent, p_session, p_ordinal);
  select n.* into c from unnest(t.path) r(part)
    cross join lateral (select k.* from transcript_cuts k
      where k.agent = p_agent and k.session = p_session and k.upto >= lower(r.part) and k.upto < upper(r.part)
      order by k.upto desc limit 1) n
    order by n.upto desc limit 1;
  update transcripts n set head = p_ordinal, path = t.path, cut_upto = coalesce(c.upto, -1),
      cut_strategy = c.strategy, cut_run = c.run_id, cut_summary = c.summary, cut_at = c.at,
      cut_changes = case when c.upto = t.cut_upto then t.cut_changes end
    where n.agent = p_agent and n.session = p_session;
end $$;
