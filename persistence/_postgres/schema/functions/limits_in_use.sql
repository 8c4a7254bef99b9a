-- Return all limits, with the slots that live hosts hold and want.
create or replace function limits_in_use()
returns table (scope text, max_concurrent int, rate_per_s double precision, burst int, weight int,
  held int, wanting int, hosts int)
language sql stable set search_path from current as $$
  select l.scope, l.max_concurrent, l.rate_per_s, l.burst, l.weight, coalesce(sum(p.held), 0)::int,
      coalesce(sum(greatest(p.wanted - p.held, p.starts, 0)), 0)::int, count(p.host)::int
    from limits l left join (
      select * from limit_places q where q.held + q.wanted + q.starts > 0
        and q.host in (select h.incarnation from hosts h where h.expires_at >= present())
    ) p on p.scope = l.scope
    group by l.scope order by l.scope
$$;
