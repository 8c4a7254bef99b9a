-- Write the inbox rows of a shard's next followers. Called by hosts of the previous release; others call
-- `expand_fanouts`. `held`: false if the caller does not own the shard any more. `body`: the message of the first of
-- `agents`; the messages of the others differ in the target only.
create or replace function expand_fanout(p_shard text, p_owner text, p_epoch bigint, p_seq bigint, p_limit int)
returns table (held boolean, body text, agents text[], arrivals bigint[], lazy int, done boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare begun text; of_topic text; of_post text; template text;
begin
  perform 1 from shards s where s.shard = p_shard and s.owner = p_owner and s.epoch = p_epoch
    for share;
  if not found then
    return query select false, null::text, '{}'::text[], '{}'::bigint[], 0, false;
    return;
  end if;
  select x.after, x.topic into begun, of_topic from fanouts x
    where x.shard = p_shard and x.seq = p_seq for update;
  if not found then
    return query select true, null::text, '{}'::text[], '{}'::bigint[], 0, true;
    return;
  end if;
  select p.message_id, p.body into of_post, template from posts p where p.seq = p_seq;
  return query
    with chunk as materialized (
      select f.follower, f.hash, f.mode from follows f
        where f.topic = of_topic and f.shard = p_shard and f.follower > begun
          and f.since < p_seq and (f.until is null or f.until > p_seq)
        order by f.follower limit p_limit),
    kept as (
      insert into inbox (agent, sender, message_id, shard, hash, state, body)
        select c.follower, 'topic:' || of_topic, of_post, p_shard, c.hash,
            case c.mode when 'l' then 'l' else 'p' end::"char",
            (template || to_json(c.follower)::text || '}')::json
          from chunk c order by c.follower
        on conflict do nothing returning agent, arrival, state),
    told as (
      select coalesce(array_agg(k.agent) filter (where k.state = 'p'), '{}') as agents,
          coalesce(array_agg(k.arrival) filter (where k.state = 'p'), '{}') as arrivals,
          count(*) filter (where k.state = 'l') as lazy
        from kept k),
    counted as (select count(*) as met, max(c.follower) as upto from chunk c),
    moved as (
      update fanouts x set after = c.upto from counted c
        where x.shard = p_shard and x.seq = p_seq and c.met = p_limit),
    ended as (
      delete from fanouts x using counted c
        where x.shard = p_shard and x.seq = p_seq and c.met < p_limit returning x.seq),
    closed as (
      update posts p set shards_left = p.shards_left - 1,
          body = case when p.shards_left > 1 then p.body end
        where p.seq = any(array(select e.seq from ended e)))
    select true, template || to_json(t.agents[1])::text || '}', t.agents, t.arrivals, t.lazy::int,
        c.met < p_limit
      from told t, counted c;
end $$;
