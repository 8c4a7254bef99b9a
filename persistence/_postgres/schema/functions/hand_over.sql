-- Write outbox messages that the broker does not accept directly to inboxes, as if the receivers' owners had read
-- them: by the rules of `ingest_mail`, under their fences. The owners are notified, including the sender's own host.
-- Returns the messages that have to wait and are still in the outbox. The shards are locked against their owners,
-- which could otherwise write the same rows in another lock order. Before the first stream exists all messages wait.
create or replace function hand_over(h_sender text[], h_target text[], h_n bigint[]) returns table (n bigint)
language plpgsql set search_path from current set enable_bitmapscan = off set enable_seqscan = off
  set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  living bigint := present_stream_epoch(); many int; places int;
  t_agent text[]; t_hash bigint[]; t_sender text[]; t_id text[]; t_body text[];
  c_shard text[]; c_owner text[]; c_fence bigint[]; fresh text[];
begin
  select array_agg(o.target order by o.n), array_agg(o.target_hash order by o.n),
      array_agg(o.sender order by o.n), array_agg(o.message_id order by o.n),
      array_agg(o.body::text order by o.n), count(*)
    into t_agent, t_hash, t_sender, t_id, t_body, many
    from unnest(h_sender, h_target, h_n) h(sender, target, n)
    cross join lateral (select * from outbox o
      where o.sender || E'\n' || o.target = h.sender || E'\n' || h.target and o.n = h.n offset 0) o
    where o.dead is null;
  if many > 0 and living is not null then
    perform account_for(t_agent, t_hash);
    select array_agg(s.shard), array_agg(s.owner), array_agg(s.epoch), count(*)
      into c_shard, c_owner, c_fence, places
      from (select s.shard, s.owner, s.epoch
        from (select distinct shard_of(a.agent, a.hash, y.mode, y.partitions) as shard
          from unnest(t_agent, t_hash) a(agent, hash) left join types y on y.type = agent_type(a.agent)) x
        join shards s on s.shard = x.shard order by s.shard for no key update of s) s;
    select array_agg(m.agent) into fresh
      from ingest_mail(null, c_shard, c_owner, c_fence, array_fill(living, array[places]),
        array_fill(0::bigint, array[places]), array_fill(null::timestamptz, array[places]),
        array_fill(1, array[many]), t_agent, t_hash, t_sender, t_id, t_body,
        array_fill(null::text, array[many]), array_fill(false, array[many]),
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}') m
      where m.outcome = 'arrived';
    perform nudge_owners(null, array_agg(s.owner), array_agg('mail'::text), array_agg(a.agent),
        array_agg(null::text))
      from unnest(t_agent, t_hash) a(agent, hash)
      left join types y on y.type = agent_type(a.agent)
      join shards s on s.shard = shard_of(a.agent, a.hash, y.mode, y.partitions)
      where a.agent = any(fresh);
  end if;
  return query select o.n from unnest(h_sender, h_target, h_n) h(sender, target, n)
    cross join lateral (select o.n from outbox o
      where o.sender || E'\n' || o.target = h.sender || E'\n' || h.target and o.n = h.n offset 0) o;
end $$;
