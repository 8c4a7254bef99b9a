-- Write posts, in order. Returned rows: a post that is new (without shard), and the shards that have followers to
-- deliver to, with their owners.
create or replace function write_posts(p_topic text[], p_hash bigint[], p_sender text[], p_id text[],
  p_body text[], p_brokered boolean)
returns table (i int, shard text, owner text)
language plpgsql set search_path from current set enable_seqscan = off
  set enable_hashjoin = on as $$
#variable_conflict use_column
declare made bigint[];
begin
  perform lock_follows(false);
  with kept as (
    insert into posts (topic, sender, id, message_id)
      select n.topic, n.sender, n.id, post_id(n.sender, n.id)
        from unnest(p_topic, p_sender, p_id) with ordinality n(topic, sender, id, ord)
        order by n.ord
      on conflict do nothing returning seq)
    select coalesce(array_agg(k.seq), '{}') into made from kept k;
  if cardinality(made) = 0 then return; end if;
  -- Reads only one follower of a topic per shard.
  return query
    with fresh as materialized (
      select distinct on (o.seq) n.ord::int as i, o.seq, o.place, n.topic
        from unnest(p_topic, p_sender, p_id) with ordinality n(topic, sender, id, ord)
        cross join lateral (select p.seq, p.ctid as place from posts p
          where p.topic = n.topic and p.sender = n.sender and p.id = n.id offset 0) o
        where o.seq = any(made) order by o.seq, n.ord),
    followed as materialized (
      select t.topic, x.shard from (select distinct f.topic from fresh f) t
        cross join lateral (
          with recursive s as (
            (select f.shard from follows f where f.topic = t.topic and f.until is null
              order by f.shard limit 1)
            union all
            select (select f.shard from follows f
                where f.topic = t.topic and f.until is null and f.shard > s.shard
                order by f.shard limit 1)
              from s where s.shard is not null)
          select s.shard from s where s.shard is not null) x),
    todo as (
      insert into fanouts (shard, seq, topic)
        select d.shard, f.seq, f.topic from fresh f join followed d on d.topic = f.topic
          order by f.seq, d.shard
        returning shard, seq),
    counted as (
      update posts p set shards_left = c.shards,
          body = post_template(p.topic, p.sender, p.id, p_body[c.i]::json)
        from (select f.i, f.place, count(*)::int as shards
          from fresh f join followed d on d.topic = f.topic group by f.i, f.place) c
        where p.ctid = c.place),
    observed as (
      insert into outbox (sender, target, message_id, shard, target_hash, body)
        select p_sender[f.i], 'topic:' || f.topic, p_id[f.i],
            shard_of('~topic/', p_hash[f.i], y.mode, y.partitions), p_hash[f.i], p_body[f.i]::json
          from fresh f left join types y on y.type = '~topic'
          where p_brokered order by f.seq
        on conflict do nothing)
    select f.i, null::text, null::text from fresh f
    union all
    select f.i, t.shard, h.owner from todo t join fresh f on f.seq = t.seq
      left join shards h on h.shard = t.shard;
end $$;
