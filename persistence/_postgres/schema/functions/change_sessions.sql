-- Write the effects of commits on the sessions of their agents: facts, and, if a run ended without success, the
-- active turn: the last of the run's turns that is visible to users. `p`: t (the number of the commit), session,
-- facts, failed.
create or replace function change_sessions(p json, r_run text[], r_agent text[], bad int[]) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
declare agents text[]; runs text[]; kinds text[];
begin
  perform move_head(k.agent, k.session, k.ordinal) from (
    select r_agent[x.t] as agent, x.session, n.ordinal
      from json_to_recordset(p) as x(t int, session text, failed boolean)
      cross join lateral (select o.ordinal from (
          select n.agent, n.session, n.ordinal, n.visible from transcript_turns n
            where n.run_id = r_run[x.t] and n.run_id <> '' offset 0) o
        where o.agent = r_agent[x.t] and o.session = x.session and o.visible
        order by o.ordinal desc limit 1) n
      where x.failed and x.t <> all(bad) order by 1, 2) k;
  select array_agg(r_agent[x.t] order by x.t, f.n), array_agg(r_run[x.t] order by x.t, f.n),
      array_agg(f.kind order by x.t, f.n)
    into agents, runs, kinds
    from json_to_recordset(p) as x(t int, facts json)
    cross join lateral json_array_elements_text(x.facts) with ordinality f(kind, n)
    where x.t <> all(bad);
  if agents is not null then
    perform write_facts(agents, runs, kinds, array_fill(0, array[cardinality(runs)]),
      array_fill(''::text, array[cardinality(runs)]));
  end if;
end $$;
