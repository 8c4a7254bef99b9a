-- Add the models' answers that these commits record to the usage totals of their agents. `p`: one row per answer; t
-- is the number of its commit. Rows of commits in `bad` are skipped. `p_at`: the time of the entries. Called last in
-- a commit, so a transaction that waits for a row lock here already holds all its other locks.
create or replace function add_usage(p json, bad int[], p_at timestamptz)
returns void
language plpgsql set search_path from current as $$
begin
  insert into usage_totals as u (tenant, agent, model, day, calls, input, output, cached, cache_written,
      cost_usd, unpriced)
    select agent_tenant(x.agent), x.agent, x.model, (p_at at time zone 'UTC')::date, count(*),
        sum(x.input), sum(x.output), sum(x.cached), sum(x.cache_written), coalesce(sum(x.cost_usd), 0),
        count(*) filter (where x.cost_usd is null)
      from json_to_recordset(p) as x(t int, agent text, model text, input numeric, output numeric,
        cached numeric, cache_written numeric, cost_usd numeric)
      where x.t <> all(bad)
      group by x.agent, x.model order by x.agent collate "C", x.model collate "C"
    on conflict (tenant, agent, model, day) do update set calls = u.calls + excluded.calls,
      input = u.input + excluded.input, output = u.output + excluded.output,
      cached = u.cached + excluded.cached, cache_written = u.cache_written + excluded.cache_written,
      cost_usd = u.cost_usd + excluded.cost_usd, unpriced = u.unpriced + excluded.unpriced;
end $$;
