-- Limits on runs at once and on starts per second, exact over all hosts. Whoever exchanges places locks
-- the rows of its limits in key order and nothing else; who is under no limit never comes here.
-- New tables only: takes no lock that anybody holds. Old hosts go on and obey no limit.

-- The bucket: `tokens` starts as of `filled_at`.
create table limits (
  scope text collate "C" primary key,
  max_concurrent int check (max_concurrent >= 0),
  rate_per_s double precision check (rate_per_s > 0),
  burst int not null default 0,
  weight int not null default 1,
  tokens double precision not null default 0,
  filled_at timestamptz not null default present()
) with (fillfactor = 50);

-- What a host has of a limit, and wants. Counts while the host is alive. `got_at`, `started_at`: when it
-- was last granted a place and a start, for whose turn it is where there is less than one for each.
create table limit_places (
  scope text collate "C" not null references limits on delete cascade,
  host text collate "C" not null,
  held int not null,
  wanted int not null,
  starts int not null,
  seen_at timestamptz not null,
  got_at timestamptz not null default '-infinity',
  started_at timestamptz not null default '-infinity',
  primary key (scope, host)
) with (fillfactor = 50);

create function set_limit(p_scope text, p_max int, p_rate double precision, p_burst int, p_weight int)
returns void language plpgsql set search_path from current as $$
begin
  insert into limits as l (scope, max_concurrent, rate_per_s, burst, weight, tokens)
    values (p_scope, p_max, p_rate, p_burst, p_weight, p_burst)
    on conflict (scope) do update set max_concurrent = p_max, rate_per_s = p_rate, burst = p_burst,
      weight = p_weight, filled_at = present(),
      tokens = case when l.rate_per_s is null then p_burst else least(p_burst,
        l.tokens + l.rate_per_s * extract(epoch from greatest(present() - l.filled_at, '0 s'))) end;
  -- Hosts do not say how many execute where there is no such limit.
  delete from limit_places p where p.scope = p_scope and p_max is null;
  perform pg_notify(current_schema() || ':all', '[["limits",null,null]]');
end $$;

create function delete_limit(p_scope text) returns boolean
language plpgsql set search_path from current as $$
begin
  delete from limits l where l.scope = p_scope;
  if not found then return false; end if;
  perform pg_notify(current_schema() || ':all', '[["limits",null,null]]');
  return true;
end $$;

-- How many of `places` each host may use. Who wants less than an equal part gets what it wants, the
-- others equal parts of the rest; of those one more goes to whoever got its last place in the last
-- 100 ms, which is a turn, then to those who have waited longest.
create function fair_places(p_scope text, places int, at timestamptz)
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

-- How many starts a host gets of what is in the bucket: an equal part among those who want some and
-- were here lately, and of the rest one each for those who have waited longest.
create function fair_starts(p_scope text, me text, tokens int, at timestamptz) returns int
language sql stable as $$
  select (tokens / w.n + (w.place <= tokens % w.n)::int)::int from (
    select p.host, count(*) over () as n, row_number() over (order by p.started_at, p.host) as place
      from limit_places p where p.scope = p_scope and (p.host = me
        or (p.starts > 0 and p.seen_at > at - interval '2 s'))) w
    where w.host = me
$$;

-- Keep `c_held` places of each limit, take up to `c_wanted`, and take or give back starts.
create function exchange_places(me text, c_scope text[], c_held int[], c_wanted int[], c_starts int[])
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
      -- Others hear when they can take what is free now, and when somebody begins to want theirs.
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
    perform pg_notify(current_schema() || ':all', '[["places",null,null]]');
  end if;
end $$;

create function limits_in_use()
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
