-- Adds the answers of models that turns record to the totals of their agents. `p`: a row for each answer, with t,
-- the number of its turn; those of turns in `bad` are left out. `p_at`: the instant of the entries. Called last
-- in a commit: whoever waits for a row here holds all else that he needs.
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
