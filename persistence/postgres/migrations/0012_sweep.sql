-- What ended runs leave behind goes after a while; their rows stay as tombstones, so that an id given
-- twice still names the run it named before. Ids of messages are kept for 8 days at least.
-- The indexes are built under a lock that keeps writers of `runs`
-- and `inbox` waiting: seconds for millions of rows. Old hosts go on: they never read what was swept.

create index runs_to_sweep on runs (ended_at) where ended_at is not null and not swept;
-- Runs of which nothing is to be kept do not wait for their time.
create index runs_of_no_trace on runs (run_id)
  where ended_at is not null and not swept and supervision ->> 'retention' = 'none';
-- Rows of a table that grows lie in the order of their time: a few pages instead of an entry per message.
create index inbox_received on inbox using brin (received_at) with (pages_per_range = 32);

-- Take logs, results, signals and answers of at most `most` runs that ended longer ago, or of which
-- nothing is to be kept; of fewer when they have more than 20,000 entries. Returns how many.
create function sweep_runs(older interval, most int) returns int
language plpgsql set search_path from current as $$
declare ids text[];
begin
  with candidates as materialized (
    (select r.run_id, 0 as rank from runs r
      where r.ended_at is not null and not r.swept and r.supervision ->> 'retention' = 'none'
      limit most)
    union
    (select r.run_id, 1 from runs r
      where r.ended_at is not null and not r.swept and r.ended_at < present() - older
      order by r.ended_at limit most)
  ), sized as (
    select c.run_id, sum(l.size) over (order by c.rank, c.run_id) - l.size as before
      from candidates c cross join lateral (
        select coalesce(max(e.seq) + 1, 0) as size from event_log e where e.run_id = c.run_id) l)
  select coalesce(array_agg(k.run_id), '{}') into ids from (
    select r.run_id from runs r
      where r.run_id in (select s.run_id from sized s where s.before < 20000 limit most)
        and not r.swept  -- another host may have been faster; this is looked at again under the lock
      order by r.run_id for no key update skip locked) k;
  if cardinality(ids) = 0 then return 0; end if;
  delete from event_log e where e.run_id = any(ids);
  delete from signals s where s.run_id = any(ids);
  delete from completions c where c.parent = any(ids);
  delete from budgets b where b.root = any(ids)
    and not exists (select 1 from runs r where r.root = b.root and r.ended_at is null);
  update runs r set swept = true, result = null, error = null, retry_policy = null,
      supervision = null, trace = null, log_from = 0
    where r.run_id = any(ids);
  return cardinality(ids);
end $$;

-- Forget ids of messages that were handled long ago. Returns how many.
create function sweep_ids(older interval, most int) returns int
language sql set search_path from current as $$
  with gone as (
    delete from inbox i where i.ctid = any(array(
        select o.ctid from inbox o
          where o.received_at < present() - greatest(older, interval '8 days') and o.state = 'd'
          limit most))
      returning 1)
  select count(*)::int from gone
$$;
