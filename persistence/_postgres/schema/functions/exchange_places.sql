-- Exchange this host's slots of each limit: keep `c_held`, take up to `c_wanted`, and take or return starts.
create or replace function exchange_places(me text, c_scope text[], c_held int[], c_wanted int[], c_starts int[])
returns table (scope text, held int, share int, contended boolean, starts int, next_s double precision)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  at timestamptz; c record; l record; old record; is_news boolean := false;
  others int; mine int; part int; missing int; bucket double precision; got int;
begin
  perform 1 from limits k where k.scope = any(c_scope) order by k.scope for no key update;
  at := present();
  if not exists (select 1 from hosts h where h.incarnation = me and h.expires_at >= at) then
    return;
  end if;
  delete from limit_places p where p.scope = any(c_scope)
    and p.host not in (select h.incarnation from hosts h where h.expires_at >= at);
  for c in select * from unnest(c_scope, c_held, c_wanted, c_starts) u(scope, held, wanted, starts)
  loop
    select * into l from limits k where k.scope = c.scope;
    continue when not found;
    select p.held, p.wanted, p.starts into old from limit_places p
      where p.scope = c.scope and p.host = me;
    insert into limit_places as p (scope, host, held, wanted, starts, seen_at)
      values (c.scope, me, c.held, c.wanted, greatest(c.starts, 0), at)
      on conflict (scope, host) do update set held = excluded.held, wanted = excluded.wanted,
        starts = excluded.starts, seen_at = at;
    mine := c.held; part := c.wanted; missing := 0; got := 0; next_s := 0;
    if l.max_concurrent is not null then
      select coalesce(sum(p.held), 0), coalesce(sum(greatest(p.wanted - p.held, 0)), 0)
        into others, missing from limit_places p where p.scope = c.scope and p.host <> me;
      part := coalesce((select f.share from fair_places(c.scope, l.max_concurrent, at) f
        where f.host = me), 0);
      mine := greatest(mine, least(part, c.wanted, l.max_concurrent - others));
      if mine > c.held then
        update limit_places p set held = mine, got_at = at where p.scope = c.scope and p.host = me;
      end if;
      -- Notify other hosts when slots became free that they want, and when this host begins to want slots that they
      -- hold.
      is_news := is_news or (missing > 0 and mine < coalesce(old.held, 0))
        or (others > 0 and mine < c.wanted and coalesce(old.wanted <= old.held, true));
    end if;
    if l.rate_per_s is not null and c.starts <> 0 then
      bucket := least(l.burst, l.tokens - least(c.starts, 0) + l.rate_per_s
        * extract(epoch from greatest(at - l.filled_at, '0 s')));
      if c.starts > 0 then
        got := least(c.starts, fair_starts(c.scope, me, floor(bucket)::int, at));
      end if;
      bucket := bucket - got;
      update limits k set tokens = bucket, filled_at = greatest(at, l.filled_at)
        where k.scope = c.scope;
      if got > 0 then
        update limit_places p set started_at = at, starts = c.starts - got
          where p.scope = c.scope and p.host = me;
      end if;
      next_s := (floor(bucket) + 1 - bucket) / l.rate_per_s;
    end if;
    scope := c.scope; held := mine; share := part; contended := missing > 0; starts := got;
    return next;
  end loop;
  if is_news then
    -- The old name of `slots`: hosts of the release before know no other.
    perform pg_notify(current_schema() || ':all', '[["places",null,null]]');
  end if;
end $$;
