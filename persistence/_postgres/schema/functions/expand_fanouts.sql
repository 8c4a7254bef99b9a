-- Write the inbox rows of the next followers in these shards, `p_limit` in all, and record the progress. The posts of
-- a shard are delivered in order: a post starts after all followers have the one before it. Returned rows: a shard
-- that the caller does not own (lost), a shard with followers left (more), and the rows written of a post in a shard
-- (brought). The first row of a post has its `body`, the message of the first of `agents`; the messages of the others
-- differ in the target only.
create or replace function expand_fanouts(p_shard text[], p_owner text, p_epoch bigint[], p_limit int)
returns table (shard text, outcome text, body text, agents text[], arrivals bigint[], lazies text[])
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare
  held text[]; post record; told record; of_post text; template text; room int := p_limit; each int;
  cut text[] := '{}'; ended text[]; begun text[]; uptos text[];
begin
  select coalesce(array_agg(l.shard), '{}') into held from (
    select s.shard from unnest(p_shard, p_epoch) f(shard, epoch)
      join shards s on s.shard = f.shard and s.owner = p_owner and s.epoch = f.epoch
      order by s.shard for share of s) l;
  return query select u.shard, 'lost', null::text, null::text[], null::bigint[], null::text[]
    from unnest(p_shard) u(shard) where u.shard <> all(held);
  for post in
    select x.seq, x.topic, array_agg(x.shard) as shards, array_agg(x.after) as afters
      from (select l.* from unnest(held) s(shard) cross join lateral (
        select f.* from fanouts f where f.shard = s.shard order by f.seq limit 20 for update) l) x
      group by x.seq, x.topic order by x.seq
  loop
    exit when room <= 0;
    ended := array(select u.shard from unnest(post.shards) u(shard) where u.shard <> all(cut));
    continue when ended = '{}';
    each := greatest(room / cardinality(ended), 1);
    begun := '{}';
    uptos := '{}';
    select p.message_id, p.body into of_post, template from posts p where p.seq = post.seq;
    for told in
      with chunk as materialized (
        select a.shard, f.follower, f.hash, f.mode from unnest(post.shards, post.afters) a(shard, after)
          cross join lateral (select f.follower, f.hash, f.mode from follows f
            where f.topic = post.topic and f.shard = a.shard and f.follower > a.after
              and f.since < post.seq and (f.until is null or f.until > post.seq)
            order by f.follower limit each) f
          where a.shard <> all(cut)),
      kept as (
        insert into inbox (agent, sender, message_id, shard, hash, state, body)
          select c.follower, 'topic:' || post.topic, of_post, c.shard, c.hash,
              case c.mode when 'l' then 'l' else 'p' end::"char",
              (template || to_json(c.follower)::text || '}')::json
            from chunk c order by c.follower
          on conflict do nothing returning agent, shard, arrival, state)
      select c.shard, count(*)::int as met, max(c.follower) as upto, null::text[] as agents,
          null::bigint[] as arrivals, null::text[] as lazies from chunk c group by c.shard
      union all
      select k.shard, 0, null, array_agg(k.agent) filter (where k.state = 'p'),
          array_agg(k.arrival) filter (where k.state = 'p'),
          array_agg(k.agent) filter (where k.state = 'l') from kept k group by k.shard
    loop
      room := room - told.met;
      if told.met = each then
        ended := array_remove(ended, told.shard);
        begun := begun || told.shard;
        uptos := uptos || told.upto;
      elsif told.met = 0 then
        return query select told.shard, 'brought', template || to_json(told.agents[1])::text || '}',
          told.agents, told.arrivals, told.lazies;
        if told.agents is not null then
          template := null;
        end if;
      end if;
    end loop;
    update fanouts x set after = b.upto
      from (select f.place, u.upto from unnest(begun, uptos) u(shard, upto)
        cross join lateral (select f.ctid as place from fanouts f
          where f.shard = u.shard and f.seq = post.seq offset 0) f) b
      where x.ctid = b.place;
    cut := cut || begun;
    if ended <> '{}' then
      delete from fanouts x where x.ctid = any(array(
        select f.ctid from unnest(ended) u(shard) cross join lateral (select f.ctid from fanouts f
          where f.shard = u.shard and f.seq = post.seq offset 0) f));
      update posts p set shards_left = p.shards_left - cardinality(ended),
          body = case when p.shards_left > cardinality(ended) then p.body end
        where p.seq = post.seq;
    end if;
  end loop;
  return query select u.shard, 'more', null::text, null::text[], null::bigint[], null::text[]
    from unnest(held) u(shard) where exists (select from fanouts f where f.shard = u.shard offset 0);
end $$;
