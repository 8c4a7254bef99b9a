-- Write facts of sessions, in order, after the last fact of each. The session's row is locked, so numbers are
-- consecutive. The first fact creates the session, or creates it again. Hosts that watch the session are notified.
create or replace function write_facts(f_agent text[], f_run text[], f_kind text[], f_ahead int[], f_project text[])
returns void language plpgsql set search_path from current set enable_seqscan = off as $$
declare at timestamptz; watched text[];
begin
  perform hold_sessions(f_agent);
  at := clock_timestamp();
  insert into session_facts (agent, number, kind, run_id, ahead, at)
    select f.agent, s.last_fact + f.n, f.kind, f.run, f.ahead, at
      from (select u.*, row_number() over (partition by u.agent order by u.ord) as n
        from unnest(f_agent, f_run, f_kind, f_ahead) with ordinality u(agent, run, kind, ahead, ord)) f
      cross join lateral (select x.last_fact from sessions x where x.agent = f.agent offset 0) s;
  with counted as (
    update sessions s set last_fact = s.last_fact + c.n, last_at = at,
        project = case when s.created_at is null then c.project else s.project end,
        created_at = coalesce(s.created_at, at)
      from (select k.place, f.n, f.project
        from (select u.agent, count(*) as n, (array_agg(u.project order by u.ord))[1] as project
          from unnest(f_agent, f_project) with ordinality u(agent, project, ord) group by u.agent) f
        cross join lateral (select x.ctid as place from sessions x where x.agent = f.agent offset 0) k) c
      where s.ctid = c.place
      returning s.agent, s.watched_until)
    select array_agg(c.agent) into watched from counted c where c.watched_until > at;
  if watched is not null then
    perform pg_notify(current_schema() || ':sessions', w.agent) from unnest(watched) w(agent);
  end if;
end $$;
