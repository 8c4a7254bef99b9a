-- Return how many of `places` slots each host may use. A host that wants less than an equal part gets what it wants;
-- the others divide the remaining slots equally. Slots that cannot be divided are assigned one each, first to hosts
-- that got their last slot within the last 100 ms, then to those that have waited longest.
create or replace function fair_places(p_scope text, places int, at timestamptz)
returns table (host text, share int) language sql stable as $$
  with wanting as (
    select p.host, p.wanted, p.got_at, count(*) over () - row_number() over same + 1 as rest,
        sum(p.wanted) over same - p.wanted as before
      from limit_places p where p.scope = p_scope and p.wanted > 0
      window same as (order by p.wanted, p.host rows unbounded preceding)
  ), level as (
    select (places - w.before) / w.rest as share, (places - w.before) % w.rest as more, w.rest
      from wanting w where w.wanted * w.rest > places - w.before order by w.rest desc limit 1
  )
  select w.host, case when l.rest is null or w.rest > l.rest then w.wanted
      else l.share + (row_number() over (partition by w.rest <= l.rest
        order by w.got_at > at - interval '100 ms' desc, w.got_at, w.host) <= l.more)::int end::int
    from wanting w left join level l on true
$$;
