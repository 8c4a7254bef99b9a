-- Return runs that include all runs in a wait cycle with this one; null if there is no cycle. Whether a wait prevents
-- its run from continuing is checked by `cycles_of`, not here.
-- A parent may wait for thousands of children, and thousands of runs may wait for one agent. So waits are followed in
-- both directions with growing limits: once one direction is completely known and does not contain the run, there is
-- no cycle. For a new wait the search usually reads only the run's own ancestors.
create or replace function runs_around(p_run text) returns text[]
language plpgsql stable set search_path from current as $$
declare
  many int := 32; found text[];
begin
  while many <= 16384 loop
    found := array(
      with recursive behind as (
        select p_run collate "C" as run_id, true as is_first
        union
        -- Runs that wait for it or for its agent, and runs queued behind it, since other runs may wait for those.
        select n.run_id, false from behind b
          cross join lateral (select x.run_id, x.agent,
              x.attempt > 0 or x.status <> 'PENDING' as is_started from runs x
            where x.run_id = b.run_id offset 0) x
          cross join lateral (
            select w.run_id from waits w where w.target_run = x.run_id
            union all
            select w.run_id from waits w
              where w.agent = case when x.is_started then x.agent end and w.target_run is null
            union all
            select q.run_id from runs q
              where q.agent = case when x.is_started then x.agent end and q.ended_at is null
                and q.run_id <> x.run_id
            offset 0) n)
      select b.run_id from behind b where not b.is_first limit many);
    if cardinality(found) < many then
      return case when p_run = any(found) then found end;
    end if;
    found := array(
      with recursive ahead as (
        select p_run collate "C" as run_id, true as is_first
        union
        select n.run_id, false from ahead a
          cross join lateral (select x.run_id, x.agent,
              x.attempt = 0 and x.status = 'PENDING' as is_queued from runs x
            where x.run_id = a.run_id offset 0) x
          cross join lateral (
            select coalesce(w.target_run, started_on(w.agent)) as run_id from waits w
              where w.run_id = x.run_id
            union all
            select started_on(x.agent) where x.is_queued
            offset 0) n
          where n.run_id is not null)
      select a.run_id from ahead a where not a.is_first limit many);
    if cardinality(found) < many then
      return case when p_run = any(found) then found end;
    end if;
    many := many * 8;
  end loop;
  return null;
end $$;
