-- Write the fact 'queued' for submitted runs: those whose messages have these arrival numbers, in sessions that are
-- locked.
create or replace function queue_facts(r_run text[], r_agent text[], r_project text[], made bigint[])
returns void language plpgsql set search_path from current set enable_seqscan = off as $$
declare agents text[]; runs text[]; aheads int[]; projects text[];
begin
  select array_agg(q.agent order by q.ord), array_agg(q.run order by q.ord), array_agg(q.ahead order by q.ord),
      array_agg(q.project order by q.ord)
    into agents, runs, aheads, projects from (
    select distinct on (u.run) u.run, u.agent, u.project, u.ord, a.ahead
      from unnest(r_run, r_agent, r_project) with ordinality u(run, agent, project, ord)
      cross join lateral (select r.agent, r.arrival from runs r where r.run_id = u.run offset 0) r
      cross join lateral (select count(*)::int as ahead from (select from runs o
        where o.agent = u.agent and o.ended_at is null and o.arrival < r.arrival offset 0) o) a
      where u.project is not null and r.agent = u.agent and r.arrival = any(made)
      order by u.run, u.ord) q;
  if agents is not null then
    perform write_facts(agents, runs, array_fill('queued'::text, array[cardinality(runs)]), aheads, projects);
  end if;
end $$;
