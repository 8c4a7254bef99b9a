-- Return how many shards of each type this host should own, and since when the type is served; types that no live
-- host serves are omitted. The hosts of a type form a line, each as wide as its capacity. The line is cut into as
-- many equal pieces as there are shards, shifted by an offset that depends on the type, and a host owns the pieces
-- that end in its part. So shares add up and depend on the live hosts only: a host stops releasing shards exactly
-- where another starts claiming them. A host that cannot serve gets no share of a type that another host can serve.
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
