-- Fair shares of shards between hosts. Lock order: the host's own row, the deployment, shards by key;
-- nobody waits for another host's row.
-- The new columns are added without a rewrite, under exclusive locks that last no longer than that.
-- Nested loops are off where a few rows are expected and a thousand come (measured: 500 ms, not 10).

-- What a host serves: whole types, and the shards of single agents. Nothing: it is about to leave.
alter table hosts
  add column types text[] not null default '{}',
  add column shards text[] not null default '{}',
  add column capacity int not null default 1000 check (capacity > 0);

-- Since when nobody owns it. Of an owned shard: when it was taken late, above its owner's share.
alter table shards add column free_since timestamptz;
alter table shards alter column free_since set default present();

-- How many shards of each type this host is to have, and since when anybody serves it; types that
-- nobody alive serves are left out. The hosts of a type stand in a row, each as wide as its capacity.
-- The row is cut into as many equal pieces as there are shards, shifted by something that differs from
-- type to type, and a host has the pieces that end in it. So shares add up, and depend on who is alive
-- and on nothing else: giving back ends where taking begins.
create function fair_share(me text, at timestamptz)
returns table (type text, share int, since timestamptz) language sql stable as $$
  select t.type, (((x.before + x.mine) * t.partitions + y.shift) / x.total
      - (x.before * t.partitions + y.shift) / x.total)::int, x.since
    from (
      select h.type, min(h.started_at) as since, sum(h.capacity)::bigint as total,
          coalesce(sum(h.capacity) filter (where h.incarnation < me), 0)::bigint as before,
          coalesce(sum(h.capacity) filter (where h.incarnation = me), 0)::bigint as mine
        from (select l.incarnation, l.capacity, l.started_at, unnest(l.types) as type
          from hosts l where l.expires_at >= at) h
        group by h.type) x
    join types t on t.type = x.type and t.mode = 'partitioned'
    cross join lateral (select (hashtext(t.type) & 65535) * x.total / 65536 as shift) y
$$;

-- What a host should take now. `rank`: 0 falls to it, 1 is served by nobody, 2 is late: above its
-- share, because those it falls to did not come.
create function shards_to_take(me text, at timestamptz, p_types text[], p_shards text[],
  p_known text[])
returns table (shard text, owner text, epoch bigint, rank int) language sql stable as $$
  with served as materialized (
    select unnest(h.types) as type, unnest(h.shards) as shard from hosts h where h.expires_at >= at
  ), free as materialized (
    select s.shard, s.type, left(s.shard, 1) as kind, s.owner, s.epoch,
        coalesce(case when s.owner is null then s.free_since else h.expires_at end, '-infinity')
          as since
      from shards s left join hosts h on h.incarnation = s.owner
      where s.owner is null or h.incarnation is null or h.expires_at < at
  ), stretches as (
    -- Each host has its own stretch of what is free: those who come at once do not meet.
    select m.*, sum(m.missing) over (partition by m.type order by m.host) - m.missing as skip
      from (select x.type, h.incarnation as host, x.since, greatest(x.share - count(s.shard), 0) as missing
          from hosts h cross join lateral fair_share(h.incarnation, at) x
          left join shards s on s.type = x.type and s.owner = h.incarnation
          where h.expires_at >= at and x.type = any(p_types)
            and x.type in (select f.type from free f where f.kind = 'p')
          group by x.type, h.incarnation, x.share, x.since) m
  ), my_stretches as materialized (
    select * from stretches m where m.host = me
  ), of_my_types as (
    select f.*, m.since as served_since,
        mod(f.place - m.skip + f.total * m.skip, f.total) < m.missing as falls_to_me
      from (select f.*, row_number() over same - 1 as place,
          count(*) over (partition by f.type) as total
        from free f where f.kind = 'p' window same as (partition by f.type order by f.shard)) f
      join my_stretches m on m.type = f.type
  )
  -- The answer to an earlier claim was lost.
  select s.shard, s.owner, s.epoch, 0 from shards s
    where s.owner = me and s.shard not in (select unnest(p_known))
  union all
  select f.shard, f.owner, f.epoch, case when f.falls_to_me then 0 else 2 end from of_my_types f
    where f.falls_to_me or greatest(f.since, f.served_since) < at - interval '15 s'
  union all
  select f.shard, f.owner, f.epoch, 0 from free f
    where f.kind = 'i' and f.shard in (select unnest(p_shards))
  union all
  -- Mail is read for those whom nobody serves too. What was given up waits a moment for a host that
  -- is just starting; whose type is not declared has none to wait for.
  select f.shard, f.owner, f.epoch, 1 from free f
    where (f.owner is not null or f.kind = 'u' or f.since < at - interval '2 s')
      and case f.kind
        when 'p' then f.type not in (select s.type from served s where s.type is not null)
        when 'i' then f.shard not in (select s.shard from served s where s.shard is not null)
        else true end
$$;

-- Hosts with and without a broker do not read each other's mail: refuse who is of the other kind. The
-- first host with one makes the database brokered, when nobody serves without one any more.
create function same_kind_of_mail(me text, p_brokered boolean, at timestamptz) returns void
language plpgsql set search_path from current as $$
declare is_brokered boolean;
begin
  select d.brokered into is_brokered from deployment d for update;
  if is_brokered = p_brokered then return; end if;
  if is_brokered or exists (select 1 from hosts h where h.incarnation <> me and h.expires_at >= at
      and cardinality(h.types) + cardinality(h.shards) > 0) then
    raise exception '%', case when is_brokered then 'brokered' else 'unbrokered' end
      using errcode = 'CB003';
  end if;
  update deployment set brokered = true;
end $$;

drop function claim_shards(text, interval, text[], text[], text[], int);

-- Say what this host serves and take what it should have, with what is its own but unknown to it.
-- Who serves nothing takes nothing. Candidates are read without a lock, locked in key order, then
-- compared again with what was read.
create function claim_shards(me text, lease interval, p_types text[], p_shards text[],
  p_known text[], p_limit int, p_capacity int default 1000, p_brokered boolean default false)
returns table (shard text, epoch bigint, expires_at timestamptz, late boolean)
language plpgsql set search_path from current set lock_timeout = '1s' set enable_nestloop = off as $$
#variable_conflict use_column
declare
  at timestamptz := present(); until timestamptz;
  c_shard text[]; c_owner text[]; c_epoch bigint[]; c_late boolean[];
begin
  until := keep_alive(me, lease);
  update hosts h set types = p_types, shards = p_shards, capacity = p_capacity
    where h.incarnation = me
      and (h.types, h.shards, h.capacity) is distinct from (p_types, p_shards, p_capacity);
  if found and cardinality(p_types) + cardinality(p_shards) > 0 then
    perform same_kind_of_mail(me, p_brokered, at);
  end if;
  delete from hosts d where d.incarnation in (
    select h.incarnation from hosts h where h.expires_at < at - interval '1 day'
      and not exists (select 1 from shards s where s.owner = h.incarnation)
      for update skip locked);
  if cardinality(p_types) + cardinality(p_shards) = 0 then return; end if;
  select array_agg(c.shard), array_agg(c.owner), array_agg(c.epoch), array_agg(c.rank = 2)
    into c_shard, c_owner, c_epoch, c_late
    from (select * from shards_to_take(me, at, p_types, p_shards, p_known) t
      order by t.rank, t.shard limit p_limit) c;
  if c_shard is null then return; end if;
  perform 1 from shards s where s.shard = any(c_shard) order by s.shard for no key update;
  return query
    update shards s set owner = me, epoch = s.epoch + 1, free_since = case when c.late then at end
      from unnest(c_shard, c_owner, c_epoch, c_late) c(shard, owner, epoch, late)
      where s.shard = c.shard and s.owner is not distinct from c.owner and s.epoch = c.epoch
        and (c.owner is null or c.owner = me or not exists (
          select 1 from hosts h where h.incarnation = c.owner and h.expires_at >= present()))
      returning s.shard, s.epoch, until, c.late;
end $$;

create or replace function release_shards(me text, r_shard text[], r_owner text[], r_epoch bigint[])
returns int language plpgsql set search_path from current as $$
declare given int;
begin
  perform 1 from shards s where s.shard = any(r_shard) order by s.shard for no key update;
  update shards s set owner = null, free_since = present()
    from unnest(r_shard, r_owner, r_epoch) r(shard, owner, epoch)
    where s.shard = r.shard and s.owner is not distinct from r.owner and s.epoch = r.epoch;
  get diagnostics given = row_count;
  if given > 0 then
    -- Who gave up all it had is leaving: its share goes to the others, until it claims again. One that
    -- claims right now is not; waiting for its lock could be a deadlock.
    update hosts h set types = '{}', shards = '{}' where h.incarnation in (
      select l.incarnation from hosts l where l.incarnation = any(r_owner)
        and not exists (select 1 from shards s where s.owner = l.incarnation)
        for no key update skip locked);
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return given;
end $$;

drop function heartbeat(text, interval);

-- Stay alive and say what this host owns; one row with nulls when it owns nothing. `surplus` n: n of
-- the shards of this type that have one are to be given back, because they are above the share (those
-- taken late stay for five minutes), or not served here but elsewhere.
create function heartbeat(me text, lease interval)
returns table (shard text, epoch bigint, now timestamptz, surplus int)
language plpgsql set search_path from current set enable_nestloop = off as $$
#variable_conflict use_column
declare at timestamptz := present();
begin
  perform keep_alive(me, lease);
  return query
    with mine as materialized (
      select s.shard, s.type, s.epoch, left(s.shard, 1) as kind,
          s.free_since is null or s.free_since < at - interval '5 min' as may_go
        from shards s where s.owner = me
    ), held as (
      select m.type, count(*) as n from mine m where m.kind = 'p' and m.may_go group by m.type
    ), above as (
      select h.type, h.n - x.share as n
        from held h join fair_share(me, at) x on x.type = h.type where h.n > x.share
    ), elsewhere as (
      select m.shard, count(*) over (partition by m.type) as n from mine m
        where m.kind = 'i'
          and m.shard not in (select unnest(h.shards) from hosts h where h.incarnation = me)
          and m.shard in (select unnest(h.shards) from hosts h where h.expires_at >= at)
    )
    select m.shard, m.epoch, at, coalesce(a.n, e.n)::int
      from (values (true)) v(one) left join mine m on true
      left join above a on a.type = m.type and m.kind = 'p' and m.may_go
      left join elsewhere e on e.shard = m.shard;
end $$;
