-- Return how many starts a host gets from the bucket: an equal part among the hosts that want starts and asked within
-- the last 2 s, and one each of the remainder for the hosts that have waited longest.
create or replace function fair_starts(p_scope text, me text, tokens int, at timestamptz) returns int
language sql stable as $$
  select (tokens / w.n + (w.place <= tokens % w.n)::int)::int from (
    select p.host, count(*) over () as n, row_number() over (order by p.started_at, p.host) as place
      from limit_places p where p.scope = p_scope and (p.host = me
        or (p.starts > 0 and p.seen_at > at - interval '2 s'))) w
    where w.host = me
$$;
