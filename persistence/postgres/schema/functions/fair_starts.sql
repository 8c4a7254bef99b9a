-- How many starts a host gets of what is in the bucket: an equal part among those who want some and
-- were here lately, and of the rest one each for those who have waited longest.
create or replace function fair_starts(p_scope text, me text, tokens int, at timestamptz) returns int
language sql stable as $$
  select (tokens / w.n + (w.place <= tokens % w.n)::int)::int from (
    select p.host, count(*) over () as n, row_number() over (order by p.started_at, p.host) as place
      from limit_places p where p.scope = p_scope and (p.host = me
        or (p.starts > 0 and p.seen_at > at - interval '2 s'))) w
    where w.host = me
$$;
