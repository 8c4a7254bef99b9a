-- Return the shards that a host should claim now. `rank`: 0, in its share; 1, served by no host; 2, late: above its
-- share, because the hosts that should own it did not claim it. A host that cannot serve claims no shard that others
-- can serve, and no shard of agents that no host serves.
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
    -- Each host has its own range of the free shards, so that hosts that claim at the same time do not conflict.
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
  -- Shards of agents that no host serves are read, too. A released shard is left for 2 s to a host that is just
  -- starting; a shard of an undeclared type has no such host.
  select f.shard, f.owner, f.epoch, 1 from free f
    where (f.owner is not null or f.kind = 'u' or f.since < at - interval '2 s')
      and not exists (select 1 from others)
      and case f.kind
        when 'p' then f.type not in (select s.type from served s where s.type is not null)
        when 'i' then f.shard not in (select s.shard from served s where s.shard is not null)
        else true end
$$;
