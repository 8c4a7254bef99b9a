-- Delete logs, results, signals and answers of at most `most` runs that ended longer than `older` ago or have
-- retention 'none'; of fewer runs if they have more than 20,000 entries. Without `older` only of runs with retention
-- 'none'. Returns the number of runs.
create or replace function sweep_runs(older interval, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare ids text[]; before timestamptz := present() - older;
begin
  with candidates as materialized (
    (select r.run_id, 0 as rank from runs r
      where r.ended_at is not null and not r.swept and r.supervision ->> 'retention' = 'none'
      limit most)
    union
    (select r.run_id, 1 from runs r
      where r.ended_at is not null and not r.swept and r.ended_at < before
      order by r.ended_at limit most)
  ), sized as (
    select c.run_id, sum(l.size) over (order by c.rank, c.run_id) - l.size as before
      from candidates c cross join lateral (
        select coalesce(max(e.seq) + 1, 0) as size from event_log e where e.run_id = c.run_id) l)
  select coalesce(array_agg(s.run_id), '{}') into ids
    from (select z.run_id from sized z where z.before < 20000 limit most) s;
  return sweep_these(ids);
end $$;
