-- Write batches of messages, at most one batch per shard, no message twice. Returned rows: refused batches (lease,
-- stale), new messages (arrived), runs with a new signal (signalled), and shards with followers of a new post, as
-- agent, with their owner as sender (posted). An id that was moved to `message_ids` is known. `c_behind` is the
-- cursor after which a batch starts: if the stored cursor is lower, the database lost commits, and the messages
-- between have to be read again first.
-- Bitmap scans are off, so that the oldest rows of a pair are read in order, and not all of them and then sorted.
create or replace function ingest_mail(me text,
  c_shard text[], c_owner text[], c_fence bigint[], c_epoch bigint[], c_sequence bigint[],
  c_at timestamptz[],
  m_batch int[], m_agent text[], m_hash bigint[], m_sender text[], m_id text[], m_body text[],
  m_problem text[], m_sourced boolean[],
  g_batch int[], g_agent text[], g_hash bigint[], g_sender text[], g_id text[], g_run text[],
  g_name text[], g_payload text[],
  p_batch int[], p_topic text[], p_hash bigint[], p_sender text[], p_id text[], p_body text[],
  c_behind bigint[] default '{}')
returns table (batch int, outcome text, agent text, sender text, message_id text, arrival bigint,
  run_id text)
language plpgsql set search_path from current set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[] := '{}'; living bigint; m_key bigint[]; m_n bigint[]; leaving tid[];
begin
  -- 1. locks; refused batches
  perform lock_types(m_agent || g_agent);
  select coalesce(array_agg(l.i), '{}') into held from (
    select c.i from unnest(c_shard, c_owner, c_fence) with ordinality c(shard, owner, epoch, i)
      join shards s on s.shard = c.shard and s.owner is not distinct from c.owner and s.epoch = c.epoch
      order by s.shard for share of s) l;
  perform pg_advisory_xact_lock_shared(hashtext('stream of ' || current_schema()), 0);
  perform 1 from runs r where r.run_id = any(g_run) order by r.run_id for share;
  living := present_stream_epoch();
  select coalesce(array_agg(c.i::int), '{}') into bad
    from unnest(c_shard, c_epoch, c_behind) with ordinality c(shard, epoch, behind, i)
    where c.i <> all(held) or c.epoch is distinct from living
      or c.behind > coalesce((select k.sequence from cursors k
        where k.shard = c.shard and k.stream_epoch = c.epoch), 0);
  if cardinality(bad) > 0 then
    return query select b.i, case when b.i <> all(held) then 'lease' else 'stale' end,
        null::text, null::text, null::text, null::bigint, null::text
      from unnest(bad) b(i);
  end if;

  -- 2. order: a message with an outbox row waits until no older one of its (sender, target) is missing
  if cardinality(m_batch) > 0 then
    with w as materialized (
      select m.ord, m.batch, m.sender, m.agent, o.n, o.tid,
          m.batch = any(bad) or not (m.sourced or m.problem is not null) as is_nothing
        from unnest(m_batch, m_agent, m_sender, m_id, m_sourced, m_problem)
          with ordinality m(batch, agent, sender, id, sourced, problem, ord)
        left join lateral (select o.n, o.ctid as tid from outbox o
          where o.sender = m.sender and o.target = m.agent and o.message_id = m.id
            and not m.sourced and m.batch <> all(bad) offset 0) o on true),
    p as (
      select w.sender, w.agent, array_agg(w.ord order by w.n) as ords,
          array_agg(w.n order by w.n) as ns, array_agg(w.tid order by w.n) as tids
        from w where w.n is not null group by w.sender, w.agent),
    x as (
      select u.ord, case when u.n = u.oldest
          then max(u.ord) over (partition by p.sender, p.agent order by u.n) else -1 end as key,
          u.n, case when u.n = u.oldest then u.tid end as tid
        from p cross join lateral unnest(p.ords, p.ns, p.tids, array(
          select o.n from outbox o where o.sender || E'\n' || o.target = p.sender || E'\n' || p.agent
            order by o.n limit cardinality(p.ns))) u(ord, n, tid, oldest)
      union all
      select w.ord, case when w.is_nothing then -1 else w.ord end, 0, null
        from w where w.n is null)
    select array_agg(x.key order by x.ord), array_agg(x.n order by x.ord),
        array_agg(x.tid) filter (where x.tid is not null)
      into m_key, m_n, leaving from x;

    return query
      with kept as (
        insert into inbox (agent, sender, message_id, shard, hash, body)
          select m.agent, m.sender, m.id, shard_of(m.agent, m.hash, y.mode, y.partitions), m.hash,
              m.body::json
            from unnest(m_agent, m_hash, m_sender, m_id, m_body, m_problem, m_key, m_n)
              m(agent, hash, sender, id, body, problem, key, n)
            left join types y on y.type = agent_type(m.agent)
            where m.key >= 0 and m.problem is null and not exists (
                select 1 from message_ids k
                  where k.key = message_key(m.agent, m.sender, m.id) offset 0)
              and not exists (
                select 1 from inbox i
                  where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0)
          order by m.key, m.n
          on conflict do nothing
          returning agent, sender, message_id, arrival)
      select 0, 'arrived', k.agent, k.sender, k.message_id, k.arrival, null::text from kept k;
    if leaving is not null then
      delete from outbox o where o.ctid = any(leaving);
    end if;
    perform keep_dead_letters(array_agg(c_shard[m.batch]), array_agg(m.agent), array_agg(m.hash),
        array_agg(m.sender), array_agg(m.id), array_agg(m.body), array_agg('undecodable'::text),
        array_agg(m.problem))
      from unnest(m_batch, m_agent, m_hash, m_sender, m_id, m_body, m_problem, m_key)
        m(batch, agent, hash, sender, id, body, problem, key)
      where m.key >= 0 and m.problem is not null having count(*) > 0;
  end if;

  -- 3. signals: only for runs of the addressed agent
  if cardinality(g_batch) > 0 then
    return query
      with kept as (
        insert into signals (run_id, name, payload, sender, message_id)
          select g.run, g.name, g.payload::json, g.sender, g.id
            from unnest(g_batch, g_agent, g_sender, g_id, g_run, g_name, g_payload)
              with ordinality g(batch, agent, sender, id, run, name, payload, ord)
            cross join lateral (select r.agent, r.status from runs r where r.run_id = g.run offset 0) r
            where g.batch <> all(bad) and r.agent = g.agent and is_open(r.status) order by g.ord
          on conflict do nothing returning run_id)
      select distinct 0, 'signalled', r.agent, null::text, null::text, null::bigint, r.run_id
        from kept k cross join lateral (select * from runs r where r.run_id = k.run_id offset 0) r;
    perform keep_dead_letters(array_agg(c_shard[g.batch]), array_agg(g.agent), array_agg(g.hash),
        array_agg(g.sender), array_agg(g.id),
        array_agg(json_build_object('v', 1, 'id', g.id, 'target', g.agent, 'sender', g.sender,
          'created_at', clock_timestamp(), 'payload', json_build_object('kind', 'callboard.signal',
            'run_id', g.run, 'name', g.name, 'payload', g.payload::json))::text),
        array_agg('explicit'::text),
        array_agg('signal ' || g.name || ': ' || g.agent || ' has no run ' || g.run))
      from unnest(g_batch, g_agent, g_hash, g_sender, g_id, g_run, g_name, g_payload)
        g(batch, agent, hash, sender, id, run, name, payload)
      left join lateral (select r.agent from runs r where r.run_id = g.run offset 0) r on true
      where g.batch <> all(bad) and r.agent is distinct from g.agent having count(*) > 0;
  end if;

  -- 4. posts; observers get them from the broker
  if cardinality(p_batch) > 0 then
    return query
      select 0, 'posted', x.shard, x.owner, null::text, null::bigint, null::text
        from (select array_agg(p.topic order by p.ord) as topics, array_agg(p.hash order by p.ord) as hashes,
            array_agg(p.sender order by p.ord) as senders, array_agg(p.id order by p.ord) as ids,
            array_agg(p.body order by p.ord) as bodies
          from unnest(p_batch, p_topic, p_hash, p_sender, p_id, p_body)
            with ordinality p(batch, topic, hash, sender, id, body, ord)
          where p.batch <> all(bad) having count(*) > 0) n
        cross join lateral publish_posts(n.topics, n.hashes, n.senders, n.ids, n.bodies, false) x;
  end if;

  -- 5. cursors; a batch that was read again moves none back
  insert into cursors (shard, stream_epoch, sequence, at)
    select c.shard, c.epoch, c.sequence, c.at
      from unnest(c_shard, c_epoch, c_sequence, c_at) with ordinality c(shard, epoch, sequence, at, i)
      where c.i <> all(bad) order by c.shard
    on conflict (shard) do update set stream_epoch = excluded.stream_epoch,
        sequence = excluded.sequence, at = excluded.at
      where cursors.stream_epoch <> excluded.stream_epoch or cursors.sequence < excluded.sequence;
end $$;
