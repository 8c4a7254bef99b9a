-- Extend this host's lease and return the shards that it owns; one row with nulls if it owns none. Also stores what
-- the host reports of itself. `surplus` n: n of the returned shards of this type should be released, because they are
-- above the share (shards that were claimed late stay for five minutes), or not served here but by another host. For
-- a host that cannot serve, all shards that others can serve are surplus, and so are shards that no host serves.
create or replace function heartbeat(me text, lease interval, p_clock_ahead_s double precision default null,
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
