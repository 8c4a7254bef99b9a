-- Delete these runs, which have ended, with all their rows. A tree's budget is deleted with the last run that it
-- counts.
create or replace function drop_runs(ids text[]) returns int language plpgsql set search_path from current set enable_seqscan = off as $$
declare roots text[]; dropped int;
begin
  delete from event_log e where e.run_id = any(ids);
  delete from signals s where s.run_id = any(ids);
  delete from completions c where c.parent = any(ids);
  with gone as (
    delete from runs r where r.run_id = any(ids) and r.ended_at is not null
      returning coalesce(r.root, r.run_id) as root)
    select array_agg(distinct g.root), count(*) into roots, dropped from gone g;
  delete from budgets b where b.root = any(roots) and b.open <= 0
    and not exists (select 1 from (select r.ended_at from runs r where r.run_id = b.root offset 0) r
      where r.ended_at is null);
  return dropped;
end $$;
