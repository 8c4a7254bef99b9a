-- Hosts: who counts as able to serve.
-- Functions take another's place: no lock that anybody holds for long. Hosts of the release before keep working.

-- Why a host that lives cannot serve now: 'blocked' (its event loop is) or 'broker' (for a lease it has had
-- no connection). It then gives up what others can serve. 'returning': it has the broker again, for less
-- than a lease; it gives up nothing and takes nothing. 'unsure': it lost it for less than a lease; it goes
-- on as before, but others count on it no more. So a short loss, and one of all hosts, moves nothing. How far the wall clock of its machine is ahead of ours
-- decides nothing. Null: it can, and it does not say.
alter table hosts add column unable text, add column clock_ahead_s double precision;

-- Runs whose code blocked a host for so long that it gave their shard up, with the ends of their logs
-- then. Read by whoever takes the shard.
create table blockings (
  run_id text primary key,
  shard text not null,
  seqs bigint[] not null,
  place text not null,
  at timestamptz not null default present()
);
create index blockings_of_shard on blockings (shard);

-- What other hosts can serve, as types and shards of single agents, if this host cannot; else nothing.
create function left_to_others(me text, at timestamptz, p_unable text)
returns table (type text, shard text) language sql stable as $$
  select unnest(h.types), unnest(h.shards) from hosts h
    where p_unable <> 'unsure' and h.incarnation <> me and h.expires_at >= at and h.unable is null
$$;

-- As in 0006, but who cannot serve has no share of a type that somebody else can serve.
create or replace function fair_share(me text, at timestamptz)
returns table (type text, share int, since timestamptz) language sql stable as $$
  select t.type, (((x.before + x.mine) * t.partitions + y.shift) / x.total
      - (x.before * t.partitions + y.shift) / x.total)::int, x.since
    from (
      select h.type, min(h.started_at) as since, sum(h.capacity)::bigint as total,
          coalesce(sum(h.capacity) filter (where h.incarnation < me), 0)::bigint as before,
          coalesce(sum(h.capacity) filter (where h.incarnation = me), 0)::bigint as mine
        from (select l.incarnation, l.started_at, l.type,
            case when l.unable <> 'unsure' and bool_or(l.unable is null) over (partition by l.type)
              then 0 else l.capacity end as capacity
          from (select i.incarnation, i.capacity, i.started_at, i.unable, unnest(i.types) as type
            from hosts i where i.expires_at >= at) l) h
        group by h.type) x
    join types t on t.type = x.type and t.mode = 'partitioned'
    cross join lateral (select (hashtext(t.type) & 65535) * x.total / 65536 as shift) y
$$;

-- As in 0006, but who cannot serve takes nothing that others can, and no mail of agents that nobody serves.
create or replace function shards_to_take(me text, at timestamptz, p_types text[], p_shards text[],
  p_known text[])
returns table (shard text, owner text, epoch bigint, rank int) language sql stable as $$
  with served as materialized (
    select unnest(h.types) as type, unnest(h.shards) as shard from hosts h where h.expires_at >= at
  ), others as materialized (
    select o.type, o.shard from hosts m cross join lateral left_to_others(me, at, m.unable) o
      where m.incarnation = me
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
    where f.falls_to_me or (greatest(f.since, f.served_since) < at - interval '15 s'
      and f.type not in (select o.type from others o where o.type is not null))
  union all
  select f.shard, f.owner, f.epoch, 0 from free f
    where f.kind = 'i' and f.shard in (select unnest(p_shards))
      and f.shard not in (select o.shard from others o where o.shard is not null)
  union all
  -- Mail is read for those whom nobody serves too. What was given up waits a moment for a host that
  -- is just starting; whose type is not declared has none to wait for.
  select f.shard, f.owner, f.epoch, 1 from free f
    where (f.owner is not null or f.kind = 'u' or f.since < at - interval '2 s')
      and not exists (select 1 from others)
      and case f.kind
        when 'p' then f.type not in (select s.type from served s where s.type is not null)
        when 'i' then f.shard not in (select s.shard from served s where s.shard is not null)
        else true end
$$;

-- As in 0006.
create or replace function claim_shards(me text, lease interval, p_types text[], p_shards text[],
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
    update shards s set owner = me, epoch = epoch_behind(s.epoch), free_since = case when c.late then at end
      from unnest(c_shard, c_owner, c_epoch, c_late) c(shard, owner, epoch, late)
      where s.shard = c.shard and s.owner is not distinct from c.owner and s.epoch = c.epoch
        and (c.owner is null or c.owner = me or not exists (
          select 1 from hosts h where h.incarnation = c.owner and h.expires_at >= present()))
      returning s.shard, s.epoch, until, c.late;
end $$;

drop function heartbeat(text, interval);

-- As in 0006, with what the host says of itself. Of one that cannot serve everything that others can is
-- surplus, and what nobody serves, too.
create function heartbeat(me text, lease interval, p_clock_ahead_s double precision default null,
  p_unable text default null)
returns table (shard text, epoch bigint, now timestamptz, surplus int)
language plpgsql set search_path from current set enable_nestloop = off as $$
#variable_conflict use_column
declare at timestamptz := present();
begin
  insert into hosts (incarnation, expires_at, clock_ahead_s, unable)
    values (me, at + lease, p_clock_ahead_s, p_unable)
    on conflict (incarnation) do update set expires_at = excluded.expires_at,
      clock_ahead_s = excluded.clock_ahead_s, unable = excluded.unable;
  return query
    with others as materialized (
      select o.type, o.shard from left_to_others(me, at, nullif(p_unable, 'returning')) o
    ), mine as materialized (
      select s.shard, s.type, s.epoch, left(s.shard, 1) as kind,
          s.free_since is null or s.free_since < at - interval '5 min' or exists (select 1 from others)
            as may_go
        from shards s where s.owner = me
    ), held as (
      select m.type, count(*) as n from mine m where m.kind = 'p' and m.may_go group by m.type
    ), above as (
      select h.type, h.n - x.share as n
        from held h join fair_share(me, at) x on x.type = h.type
        where h.n > x.share and p_unable is distinct from 'returning'
    ), elsewhere as (
      select m.shard, count(*) over (partition by m.type) as n from mine m
        where m.kind = 'i' and (m.shard in (select o.shard from others o)
          or (m.shard not in (select unnest(h.shards) from hosts h where h.incarnation = me)
            and m.shard in (select unnest(h.shards) from hosts h where h.expires_at >= at)))
    ), unserved as (
      select m.shard, count(*) over (partition by m.type) as n from mine m
        where exists (select 1 from others)
          and not exists (select 1 from hosts h where h.expires_at >= at
            and (m.shard = any(h.shards) or (m.kind = 'p' and m.type = any(h.types))))
    )
    select m.shard, m.epoch, at, coalesce(a.n, e.n, u.n)::int
      from (values (true)) v(one) left join mine m on true
      left join above a on a.type = m.type and m.kind = 'p' and m.may_go
      left join elsewhere e on e.shard = m.shard
      left join unserved u on u.shard = m.shard;
end $$;

-- Give a shard up because code of this run blocks its host; in one commit with a mark of that. False:
-- the shard is another host's. Whose marks are a week old has done something else since.
create function give_up_blocked(me text, p_shard text, p_epoch bigint, p_run text, p_place text)
returns boolean language plpgsql set search_path from current as $$
begin
  perform 1 from shards s where s.shard = p_shard and s.owner = me and s.epoch = p_epoch
    for no key update;
  if not found then return false; end if;
  delete from blockings b where b.at < present() - interval '7 days';
  insert into blockings as b (run_id, shard, seqs, place)
    values (p_run, p_shard,
      array[coalesce((select max(e.seq) from event_log e where e.run_id = p_run), -1)], p_place)
    on conflict (run_id) do update set seqs = b.seqs || excluded.seqs, shard = excluded.shard,
      place = excluded.place, at = excluded.at;
  perform release_shards(me, array[p_shard], array[me], array[p_epoch]);
  return true;
end $$;
