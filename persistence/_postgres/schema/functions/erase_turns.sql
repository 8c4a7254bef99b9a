-- Delete turns of one session, oldest first: of the named session, otherwise of the agent's first one. The first
-- batch also deletes the session's cut, since a summary repeats what its turns said. For a named session the ended
-- runs that wrote the turns are deleted before them, without a lock of the session, so that a repeated erase after a
-- crash finds them again; turns of open runs stay. At most 4 turns that are stored as artifacts are deleted per call.
create or replace function erase_turns(p_agent text, p_session text, most int)
returns table (sessions int, turns int, runs int, entries int, letters int, more boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare
  of_session text := coalesce(p_session, (
    select n.session from transcripts n where n.agent = p_agent order by n.session limit 1));
  of_runs text[]; places tid[]; gone int; lost bigint;
begin
  sessions := 0; turns := 0; runs := 0; entries := 0; letters := 0; more := true;
  if p_session is not null then
    of_runs := array(select distinct t.run_id from (
        select n.run_id from transcript_turns n where n.agent = p_agent and n.session = of_session
          order by n.ordinal limit most) t
      where t.run_id <> '' and exists (
        select from (select r.agent, r.ended_at from runs r where r.run_id = t.run_id offset 0) k
          where k.agent = p_agent and k.ended_at is not null));
    if cardinality(of_runs) > 0 then
      select e.runs, e.entries, e.letters into runs, entries, letters
        from erase_runs(null, p_agent, null, of_runs, most) e;
      return next;
      return;
    end if;
  end if;
  perform 1 from transcripts s where s.agent = p_agent and s.session = of_session for update;
  select array_agg(k.place), coalesce(sum(k.tokens), 0) into places, lost
    from (select t.place, t.tokens, count(t.artifact) over (order by t.ordinal) as apart from (
        select n.ctid as place, n.tokens, n.artifact, n.ordinal from transcript_turns n
          where n.agent = p_agent and n.session = of_session and (p_session is null or not exists (
            select from (select r.ended_at from runs r where r.run_id = n.run_id offset 0) k
              where k.ended_at is null))
          order by n.ordinal limit most) t) k
    where k.apart <= 4;
  delete from transcript_turns t where t.ctid = any(places);
  get diagnostics gone = row_count;
  turns := gone;
  if exists (select from transcript_turns n where n.agent = p_agent and n.session = of_session) then
    update transcripts s set turns = greatest(s.turns - gone, 0), tokens = greatest(s.tokens - lost, 0),
        cut_upto = -1, cut_strategy = null, cut_run = null, cut_summary = null, cut_at = null,
        cut_changes = null
      where s.agent = p_agent and s.session = of_session;
    delete from transcript_cuts c where c.agent = p_agent and c.session = of_session;
    more := gone > 0;
  else
    delete from transcripts s where s.agent = p_agent and s.session = of_session;
    get diagnostics sessions = row_count;
    more := p_session is null and sessions > 0;
  end if;
  return next;
end $$;
