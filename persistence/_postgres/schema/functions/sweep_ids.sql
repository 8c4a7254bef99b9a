-- Delete ids of messages that were done long ago. Returns their number.
create or replace function sweep_ids(older interval, most int) returns int
language sql set search_path from current as $$
  with gone as (
    delete from inbox i where i.ctid = any(array(
        select o.ctid from inbox o
          where o.received_at < present() - greatest(older, interval '8 days') and o.state = 'd'
          limit most))
      returning 1)
  select count(*)::int from gone
$$;
