-- Delete usage totals of days that are older than `older` and than 400 days. Reads `most` rows after `p_after`:
-- tenant, agent, model and day. Returns how many were deleted, and the row to continue after; null after the last
-- one.
create or replace function forget_usage(p_after text[], older interval, most int, out taken int, out last text[])
language plpgsql set search_path from current set enable_seqscan = off as $$
declare
  before date := (present() - greatest(older, interval '400 days')) at time zone 'UTC'; n int;
begin
  with looked as materialized (
    select u.ctid as place, u.tenant, u.agent, u.model, u.day from usage_totals u
      where (u.tenant, u.agent, u.model, u.day) > (p_after[1], p_after[2], p_after[3], p_after[4]::date)
      order by u.tenant, u.agent, u.model, u.day limit most
  ), gone as (
    -- Totals of past days are not updated, so a row keeps its ctid.
    delete from usage_totals u where u.ctid = any(array(select l.place from looked l where l.day < before))
      returning 1)
  select (select count(*) from gone), (select count(*) from looked),
      (select array[l.tenant, l.agent, l.model, l.day::text] from looked l
        order by l.tenant desc, l.agent desc, l.model desc, l.day desc limit 1)
    into taken, n, last;
  if n < most then last := null; end if;
end $$;
