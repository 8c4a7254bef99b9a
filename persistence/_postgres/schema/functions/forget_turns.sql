-- Delete the turns of runs from all sessions or from one, of all agents or of one. A caller without a runtime chooses
-- its run ids itself, so they may also occur at other agents. A cut that covers one of the turns is deleted, too, and
-- so is a conversation without turns.
create or replace function forget_turns(p_runs text[], p_session text, p_agent text default null)
returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
declare branches boolean; agents text[]; sessions text[];
begin
  -- Turns that are added to other sessions after this statement stay: without the lock the counters would be wrong.
  -- Only the conversation of a session is named by its agent's key.
  select bool_or(x.session = substr(x.agent, strpos(x.agent, '/') + 1)), array_agg(x.agent), array_agg(x.session)
    into branches, agents, sessions from (select distinct k.agent, k.session from unnest(p_runs) r(run)
      cross join lateral (select t.agent, t.session from transcript_turns t
        where t.run_id = r.run and t.run_id <> '' offset 0) k
      where (p_session is null or k.session = p_session) and (p_agent is null or k.agent = p_agent)
      order by k.agent, k.session) x
    cross join lateral (select n.ctid from transcripts n
      where n.agent = x.agent and n.session = x.session for update) n;
  if branches then
    delete from transcript_cuts c where c.ctid = any(array(
      select n.ctid from (
        select k.agent, k.session, min(k.ordinal) as first from unnest(p_runs) r(run)
          cross join lateral (select t.agent, t.session, t.ordinal from transcript_turns t
            where t.run_id = r.run and t.run_id <> '' offset 0) k
          where (k.agent, k.session) in (select x.agent, x.session from unnest(agents, sessions) as x(agent, session))
          group by k.agent, k.session) f
        cross join lateral (select n.ctid from transcript_cuts n
          where n.agent = f.agent and n.session = f.session and n.upto >= f.first offset 0) n));
  end if;
  with gone as (
    delete from transcript_turns t where t.ctid = any(array(
        select k.ctid from unnest(p_runs) r(run)
          cross join lateral (select n.ctid, n.agent, n.session from transcript_turns n
            where n.run_id = r.run and n.run_id <> '' offset 0) k
          where (k.agent, k.session) in (select x.agent, x.session from unnest(agents, sessions) as x(agent, session))))
      returning t.agent, t.session, t.ordinal, t.tokens),
  lost as (
    select g.agent, g.session, count(*) as n, coalesce(sum(g.tokens), 0) as tokens, min(g.ordinal) as first
      from gone g group by g.agent, g.session),
  found as (
    select l.*, s.ctid as place, s.turns > l.n as stays from lost l
      cross join lateral (select n.ctid, n.turns from transcripts n
        where n.agent = l.agent and n.session = l.session offset 0) s),
  left_over as (
    update transcripts s set turns = s.turns - f.n, tokens = s.tokens - f.tokens,
        cut_upto = case when f.first <= s.cut_upto then -1 else s.cut_upto end,
        cut_strategy = case when f.first > s.cut_upto then s.cut_strategy end,
        cut_run = case when f.first > s.cut_upto then s.cut_run end,
        cut_summary = case when f.first > s.cut_upto then s.cut_summary end,
        cut_at = case when f.first > s.cut_upto then s.cut_at end,
        cut_changes = null  -- they repeat what turns said
      from found f where s.ctid = f.place and f.stays)
  delete from transcripts s where s.ctid = any(array(select f.place from found f where not f.stays));
end $$;
