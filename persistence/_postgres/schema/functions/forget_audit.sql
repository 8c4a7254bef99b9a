-- Delete audit rows that are older than `older` and than 400 days, the oldest first; return their number.
create or replace function forget_audit(older interval, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
declare oldest timestamptz := present() - greatest(older, interval '400 days'); gone int;
begin
  delete from audit a where a.ctid = any(array(
    select o.ctid from audit o where o.at < oldest order by o.at limit most for update skip locked));
  get diagnostics gone = row_count;
  return gone;
end $$;
