-- Delete ended runs in small batches: of an agent (by its hash), otherwise of a tenant; with `p_runs` those of them
-- that are the agent's. Results and logs become unreadable at once, as for swept runs, so no reader sees part of a
-- log. The runs' rows are deleted once nothing else of them is left. `more`: something may be left.
create or replace function erase_runs(p_tenant text, p_agent text, p_hash bigint, p_runs text[], most int)
returns table (runs int, entries int, letters int, more boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare ids text[]; gone int; rest int := 0;
begin
  if p_runs is not null then
    ids := array(select r.run_id from runs r
      where r.run_id = any(p_runs) and r.agent = p_agent and r.ended_at is not null
      order by r.run_id limit most for update);
  elsif p_agent is not null then
    ids := array(select r.run_id from runs r
      where r.hash = p_hash and r.agent = p_agent and r.ended_at is not null limit most for update);
  else
    ids := array(select r.run_id from runs r
      where r.tenant = p_tenant and r.ended_at is not null limit most for update);
  end if;
  runs := 0; entries := 0; letters := 0; more := cardinality(ids) = most;
  if cardinality(ids) = 0 then
    return next;
    return;
  end if;
  update runs r set swept = true, result = null, error = null, retry_policy = null,
      supervision = null, trace = null, log_from = 0
    where r.run_id = any(ids) and not r.swept;
  delete from event_log e where e.ctid = any(array(
    select o.place from unnest(ids) u(run) cross join lateral (
      select n.ctid as place from event_log n where n.run_id = u.run limit most) o limit most));
  get diagnostics entries = row_count;
  delete from signals s where s.ctid = any(array(
    select o.place from unnest(ids) u(run) cross join lateral (
      select n.ctid as place from signals n where n.run_id = u.run limit most) o limit most));
  get diagnostics gone = row_count;
  rest := greatest(entries, gone);
  delete from completions c where c.ctid = any(array(
    select o.place from unnest(ids) u(run) cross join lateral (
      select n.ctid as place from completions n where n.parent = u.run limit most) o limit most));
  get diagnostics gone = row_count;
  rest := greatest(rest, gone);
  delete from dead_letters d where d.ctid = any(array(
    select o.place from unnest(ids) u(run) cross join lateral (
      select n.ctid as place from dead_letters n where n.run_id = u.run and n.run_id is not null limit most) o
      limit most));
  get diagnostics letters = row_count;
  if greatest(rest, letters) = most then
    more := true;
  else
    runs := drop_runs(ids);
  end if;
  return next;
end $$;
