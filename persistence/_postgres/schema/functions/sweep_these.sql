-- Delete logs, results, signals and answers of those of these runs that have ended and were not swept. Returns the
-- number of runs.
create or replace function sweep_these(given text[]) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare ids text[];
begin
  select coalesce(array_agg(k.run_id), '{}') into ids from (
    select r.run_id, r.ended_at from runs r
      where r.run_id = any(array(select u.id from unnest(given) u(id)))
        and not r.swept  -- another host may have swept it first; checked again under the lock
      order by r.run_id offset 0 for no key update skip locked) k
    where k.ended_at is not null;  -- outside of the subquery: with an empty table's statistics all ended runs would be read
  if cardinality(ids) = 0 then return 0; end if;
  delete from event_log e where e.run_id = any(ids);
  delete from signals s where s.run_id = any(ids);
  delete from completions c where c.parent = any(ids);
  delete from budgets b where b.root = any(ids) and b.open <= 0;
  update runs r set swept = true, result = null, error = null, retry_policy = null,
      supervision = null, trace = null, log_from = 0
    where r.run_id = any(ids);
  return cardinality(ids);
end $$;
