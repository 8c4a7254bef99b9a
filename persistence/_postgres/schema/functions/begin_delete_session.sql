-- Mark a session as being deleted, so that it accepts no more runs. Returns the outcome: ok, unknown, fresh (its last
-- fact is of `p_since` or later), or active with the number of its open runs.
create or replace function begin_delete_session(
  p_agent text, p_hash bigint, p_session text, p_since timestamptz default null)
returns table (outcome text, runs int) language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  select h.outcome, h.runs into outcome, runs from hold_idle_session(p_agent, p_hash, p_session) h;
  if outcome = 'ok' then
    update sessions s set is_deleting = true
      where s.agent = p_agent and (p_since is null or s.last_at < p_since);
    if not found then outcome := 'fresh'; end if;
  elsif outcome = 'deleting' then
    outcome := 'ok';
  end if;
  return next;
end $$;
