-- Return wait cycles that lead through these runs. A separate function, planned to read by key. `offset 0` keeps the
-- planner from joining runs first and from following each run once per joined row.
create or replace function cycles_among(p_runs text[], p_shards text[])
returns table (places text[], run_ids text[], agents text[])
language plpgsql stable set search_path from current
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_nestloop = on as $$
#variable_conflict use_column
begin
  return query
    select c.places, c.run_ids, c.agents
      from unnest(p_runs) y(run_id)
      cross join lateral cycles_of(y.run_id) c
      cross join lateral (select * from runs r
        where r.run_id = (select max(u.run_id) from unnest(c.run_ids) u(run_id)) offset 0) g
      where g.shard = any(p_shards);
end $$;
