-- Mail that travels by a broker: what is on its way, how far each shard was read, and the two writes
-- around it. Order is kept here alone: a message becomes an inbox row only behind all that its sender
-- sent to the same agent before, which is what the sender's outbox says.
-- Lock order: types (advisory), shards, the stream (advisory), runs; each by key.
-- New tables and functions: takes no lock that anybody holds.

-- Whose streams are ours, and whether mail goes by a broker: once it does, it always does.
create table deployment (
  is_only boolean primary key default true check (is_only),
  id text not null,
  brokered boolean not null default false
);
insert into deployment (id) values (gen_random_uuid()::text);

-- Lives of the mail stream. An epoch is given once, whatever the name; the greatest is the present one.
create table streams (
  name text collate "C" primary key,
  created timestamptz not null,
  epoch bigint not null unique
);

create table cursors (
  shard text collate "C" primary key,
  stream_epoch bigint not null,
  sequence bigint not null,
  at timestamptz
) with (fillfactor = 30);

-- `shard` is the sender's: its owner publishes. A dead letter's target is 'dead:' and the agent.
create table outbox (
  n bigint generated always as identity,
  sender text collate "C" not null,
  target text collate "C" not null,
  message_id text collate "C" not null,
  shard text collate "C" not null,
  target_hash bigint not null,
  dead text,
  body json not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (sender, target, message_id)
) with (autovacuum_vacuum_scale_factor = 0.05);
-- An expression, so that no plan takes this index for a search by key (see 0001). No target has a line
-- break.
create index outbox_of_pair on outbox ((sender || E'\n' || target), n);
create index outbox_of_shard on outbox (shard, n);

create function present_stream_epoch() returns bigint language sql stable
  as $$ select max(epoch) from streams $$;

create function lock_stream() returns void language sql
  as $$ select pg_advisory_xact_lock(hashtext('stream of ' || current_schema()), 0) $$;

-- The stream's record, with the furthest cursor of its epoch. Another name than the present one begins
-- another epoch: cursors are of one stream at a time.
create function meet_stream(p_name text, p_created timestamptz)
returns table (epoch bigint, created timestamptz, sequence bigint, at timestamptz)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  if not exists (select 1 from streams s where s.name = p_name and s.epoch = present_stream_epoch()) then
    perform lock_stream();
    insert into streams (name, created, epoch)
      values (p_name, p_created, coalesce(present_stream_epoch(), 0) + 1)
      on conflict (name) do update set created = excluded.created, epoch = excluded.epoch
        where streams.epoch < excluded.epoch - 1;
  end if;
  return query select s.epoch, s.created, c.sequence, c.at from streams s
    left join lateral (select * from cursors c where c.stream_epoch = s.epoch
      order by c.sequence desc, c.at nulls last limit 1) c on true
    where s.name = p_name;
end $$;

create function next_stream_epoch(p_name text, p_known bigint, p_created timestamptz) returns void
language plpgsql set search_path from current as $$
begin
  perform lock_stream();
  update streams s set epoch = present_stream_epoch() + 1, created = p_created
    where s.name = p_name and s.epoch = p_known;
end $$;

-- Give mail that no shard reads a shard.
create function account_for(a_agent text[], a_hash bigint[]) returns int
language plpgsql set search_path from current as $$
declare made int;
begin
  perform lock_types(a_agent);
  insert into shards (shard, type)
    select x.shard, x.type from (
      select distinct shard_of(a.agent, a.hash, y.mode, y.partitions) as shard,
          agent_type(a.agent) as type
        from unnest(a_agent, a_hash) a(agent, hash)
        left join types y on y.type = agent_type(a.agent)
        where y.mode is distinct from 'partitioned') x
      order by x.shard on conflict do nothing;
  get diagnostics made = row_count;
  if made > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return made;
end $$;

-- Keep what is no mail as dead letters, each once: the id stays in the inbox. `l_shard` read it, and
-- its owner sends the letter on.
create function keep_letters(l_shard text[], l_agent text[], l_hash bigint[], l_sender text[],
  l_id text[], l_body text[], l_reason text[], l_problem text[]) returns void
language sql set search_path from current as $$
  with fresh as (
    insert into inbox (agent, sender, message_id, shard, hash, state)
      select l.agent, l.sender, l.id, l.shard, l.hash, 'd'
        from unnest(l_agent, l_sender, l_id, l_shard, l_hash) with ordinality
          l(agent, sender, id, shard, hash, ord)
        order by l.ord on conflict do nothing
      returning agent, sender, message_id, shard, hash),
  kept as (
    insert into dead_letters (agent, sender, message_id, body, reason, attempts, last_error)
      select l.agent, l.sender, l.id, l.body::json, l.reason, 0, l.problem
        from unnest(l_agent, l_sender, l_id, l_body, l_reason, l_problem) with ordinality
          l(agent, sender, id, body, reason, problem, ord)
        join fresh f on f.agent = l.agent and f.sender = l.sender and f.message_id = l.id
        order by l.ord
      returning id, agent, sender, message_id, body, reason)
  insert into outbox (sender, target, message_id, shard, target_hash, dead, body)
    select k.sender, 'dead:' || k.agent, 'dl-' || k.id, f.shard, f.hash, k.reason, k.body
      from kept k
      join fresh f on f.agent = k.agent and f.sender = k.sender and f.message_id = k.message_id
      order by k.id
$$;

-- Batches of mail, at most one of a shard, no message twice. Returned rows: refused batches (lease,
-- stale), messages that were not known (arrived), runs with a new signal (signalled).
-- Without bitmap scans the oldest rows of a pair are read in order, not all of them and then sorted.
create function ingest_mail(me text,
  c_shard text[], c_owner text[], c_fence bigint[], c_epoch bigint[], c_sequence bigint[],
  c_at timestamptz[],
  m_batch int[], m_agent text[], m_hash bigint[], m_sender text[], m_id text[], m_body text[],
  m_problem text[], m_sourced boolean[],
  g_batch int[], g_agent text[], g_hash bigint[], g_sender text[], g_id text[], g_run text[],
  g_name text[], g_payload text[])
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
  select coalesce(array_agg(c.i::int), '{}') into bad from unnest(c_epoch) with ordinality c(epoch, i)
    where c.i <> all(held) or c.epoch is distinct from living;
  if cardinality(bad) > 0 then
    return query select b.i, case when b.i <> all(held) then 'lease' else 'stale' end,
        null::text, null::text, null::text, null::bigint, null::text
      from unnest(bad) b(i);
  end if;

  -- 2. in whose turn: what has an outbox row waits until nothing older of its pair is left out
  if cardinality(m_batch) > 0 then
    with w as materialized (
      select m.ord, m.batch, m.sender, m.agent, o.n, o.tid
        from unnest(m_batch, m_agent, m_sender, m_id, m_sourced)
          with ordinality m(batch, agent, sender, id, sourced, ord)
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
      select w.ord, case when w.batch = any(bad) then -1 else w.ord end, 0, null
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
            where m.key >= 0 and m.problem is null
          order by m.key, m.n
          on conflict do nothing
          returning agent, sender, message_id, arrival)
      select 0, 'arrived', k.agent, k.sender, k.message_id, k.arrival, null::text from kept k;
    if leaving is not null then
      delete from outbox o where o.ctid = any(leaving);
    end if;
    perform keep_letters(array_agg(c_shard[m.batch]), array_agg(m.agent), array_agg(m.hash),
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
            join runs r on r.run_id = g.run and r.agent = g.agent and is_open(r.status)
            where g.batch <> all(bad) order by g.ord
          on conflict do nothing returning run_id)
      select distinct 0, 'signalled', r.agent, null::text, null::text, null::bigint, r.run_id
        from kept k join runs r on r.run_id = k.run_id;
    perform keep_letters(array_agg(c_shard[g.batch]), array_agg(g.agent), array_agg(g.hash),
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

  -- 4. cursors; a batch that was read again moves none back
  insert into cursors (shard, stream_epoch, sequence, at)
    select c.shard, c.epoch, c.sequence, c.at
      from unnest(c_shard, c_epoch, c_sequence, c_at) with ordinality c(shard, epoch, sequence, at, i)
      where c.i <> all(bad) order by c.shard
    on conflict (shard) do update set stream_epoch = excluded.stream_epoch,
        sequence = excluded.sequence, at = excluded.at
      where cursors.stream_epoch <> excluded.stream_epoch or cursors.sequence < excluded.sequence;
end $$;

-- Whole turns. Returned rows: refused turns (lease, unknown, ended, conflict, missing), notes about
-- committed ones (note: cancel reason in detail, wake), messages that became inbox rows (routed), and
-- with a broker outbox rows, their n as arrival (outbox; dead: a dead letter of that turn, its body as
-- detail). With a broker a message becomes an inbox row only where this host owns the target's shard,
-- share-locked with the fences, and nothing of its (sender, target) is still on its way.
drop function commit_turns;
create function commit_turns(
  f_shard text[], f_owner text[], f_epoch bigint[],
  t_run text[], t_fence int[], t_agent text[], t_expected int[], t_create boolean[],
  t_status text[], t_attempt int[], t_wake text[], t_wake_at timestamptz[], t_parked text[],
  t_result text[], t_error text[], t_retry_from int[], t_dead text[], t_log_from int[],
  e_turn int[], e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[],
  n_turn int[], n_spawner text[], n_run text[], n_agent text[], n_hash bigint[], n_priority int[],
  n_retry text[], n_parent text[], n_root text[], n_depth int[], n_deadline timestamptz[],
  n_version text[], n_trace text[],
  b_turn int[], b_run text[], b_agent text[], b_sender text[], b_id text[],
  o_turn int[], o_agent text[], o_hash bigint[], o_sender text[], o_id text[], o_body text[],
  g_turn int[], g_run text[], g_n bigint[],
  k_turn int[], k_run text[], k_child text[],
  s_turn int[], s_agent text[], s_key text[], s_value text[],
  p_brokered boolean, p_local boolean)
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[]; whys text[]; lasts int[]; statuses text[];
  ended text[]; wanted bigint; done bigint;
  near_shard text[]; near_owner text[]; near_epoch bigint[]; near_key text[]; o_near boolean[];
  at timestamptz := clock_timestamp();
begin
  -- 1. locks
  if cardinality(o_turn) > 0 or cardinality(n_turn) > 0 then
    perform lock_types(o_agent || n_agent);
  end if;
  if p_brokered and p_local and cardinality(o_turn) > 0 then
    -- Shards of ours to which something is sent: read without a lock, then locked with the fences.
    select array_agg(s.shard), array_agg(s.owner), array_agg(s.epoch)
      into near_shard, near_owner, near_epoch from (
      select distinct shard_of(o.agent, o.hash, y.mode, y.partitions) as shard
        from unnest(o_agent, o_hash) o(agent, hash)
        left join types y on y.type = agent_type(o.agent)) c
      join shards s on s.shard = c.shard
      where s.owner = any(f_owner) and s.shard <> all(f_shard);
    f_shard := f_shard || near_shard;
    f_owner := f_owner || near_owner;
    f_epoch := f_epoch || near_epoch;
  end if;
  select coalesce(array_agg(l.i), '{}') into held from (
    select f.i from unnest(f_shard, f_owner, f_epoch) with ordinality f(shard, owner, epoch, i)
      join shards s on s.shard = f.shard and s.owner is not distinct from f.owner and s.epoch = f.epoch
      order by s.shard for share of s) l;
  perform 1 from runs r where r.run_id = any(t_run) order by r.run_id for no key update;

  -- 2. who passes
  select coalesce(array_agg(x.i), '{}'), array_agg(x.why), array_agg(x.last), array_agg(x.status)
    into bad, whys, lasts, statuses from (
    select t.i::int, r.status, coalesce(l.last, -1) as last,
        case when t.fence <> all(held) then 'lease'
          when r.run_id is null then case when not t.creates then 'unknown'
            when l.last is distinct from nullif(t.expected, -1) then 'conflict' end
          when r.shard <> f_shard[t.fence] or r.agent <> t.agent then 'lease'
          when r.ended_at is not null then 'ended'
          when coalesce(l.last, -1) <> t.expected then 'conflict' end as why
      from unnest(t_run, t_fence, t_agent, t_expected, t_create)
        with ordinality t(run, fence, agent, expected, creates, i)
      left join runs r on r.run_id = t.run
      left join lateral (select max(e.seq) as last from event_log e where e.run_id = t.run) l on true) x
    where x.why is not null;
  if cardinality(bad) > 0 then
    return query select x.i, x.why, x.last, x.status, false,
      null::text, null::text, null::text, null::bigint, null::text
      from unnest(bad, whys, lasts, statuses) x(i, why, last, status);
  end if;

  -- 3. what they take must still be there; a turn short of one is refused whole
  if cardinality(b_turn) + cardinality(g_turn) + cardinality(k_turn) > 0 then
    declare short int[]; what text[];
    begin
      select array_agg(m.t), array_agg(m.what) into short, what from (
        select b.t, b.id as what from unnest(b_turn, b_run, b_agent, b_sender, b_id)
            b(t, run, agent, sender, id)
          left join inbox i on i.agent = b.agent and i.sender = b.sender and i.message_id = b.id
          where b.t <> all(bad)
            and case i.state when 'p' then false when 'b' then i.run_id <> b.run else true end
        union all
        select g.t, 'signal ' || g.n from unnest(g_turn, g_run, g_n) g(t, run, n)
          left join signals s on s.run_id = g.run and s.n = g.n and not s.consumed
          where g.t <> all(bad) and s.run_id is null
        union all
        select k.t, 'completion ' || k.child from unnest(k_turn, k_run, k_child) k(t, run, child)
          left join completions c on c.parent = k.run and c.child = k.child and not c.consumed
          where k.t <> all(bad) and c.parent is null) m;
      if short is not null then
        bad := bad || short;
        return query select m.t, 'missing', null::int, m.what, false,
          null::text, null::text, null::text, null::bigint, null::text
          from unnest(short, what) m(t, what);
      end if;
    end;
  end if;

  -- 4. writes, only for the turns that passed
  if cardinality(b_turn) > 0 then
    select count(*) into wanted from unnest(b_turn) b(t) where b.t <> all(bad);
    update inbox i set state = 'b', run_id = b.run
      from unnest(b_turn, b_run, b_agent, b_sender, b_id) b(t, run, agent, sender, id)
      where i.agent = b.agent and i.sender = b.sender and i.message_id = b.id and b.t <> all(bad)
        and (i.state = 'p' or i.run_id = b.run);
    get diagnostics done = row_count;
    if done <> wanted then
      raise exception 'two turns of one group want the same message' using errcode = 'CB001';
    end if;
  end if;
  if cardinality(n_turn) > 0 then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, parent, root, depth,
        deadline_at, version, trace, cancel_requested, arrival)
      select n.run, n.agent, agent_tenant(n.agent), shard_of(n.agent, n.hash, y.mode, y.partitions),
          n.hash, n.priority, n.retry::json, n.parent, n.root, n.depth, n.deadline, n.version, n.trace,
          p.cancel_requested,
          coalesce((select min(i.arrival) from inbox i where i.run_id = n.run and i.state = 'b'), 0)
        from unnest(n_turn, n_spawner, n_run, n_agent, n_hash, n_priority, n_retry, n_parent, n_root,
            n_depth, n_deadline, n_version, n_trace)
          n(t, spawner, run, agent, hash, priority, retry, parent, root, depth, deadline, version, trace)
        left join types y on y.type = agent_type(n.agent)
        left join runs p on p.run_id = n.spawner
        where n.t <> all(bad)
      order by n.run on conflict do nothing;
  end if;
  insert into event_log (run_id, seq, kind, position, payload, ts)
    select e.run, e.seq, e.kind, e.position, e.payload::json, at
      from unnest(e_turn, e_run, e_seq, e_kind, e_position, e_payload)
        e(t, run, seq, kind, position, payload)
      where e.t <> all(bad);
  update runs r set status = t.status, attempt = t.attempt, wake = t.wake::json, wake_at = t.wake_at,
      parked = t.parked, result = t.result::json,
      error = case when t.status in ('RUNNING', 'SUSPENDED') then r.error
        else t.error::json end,
      retry_from = coalesce(t.retry_from, r.retry_from), log_from = coalesce(t.log_from, r.log_from),
      updated_at = at, open = t.status not in ('COMPLETED', 'FAILED', 'CANCELLED'),
      ended_at = case when t.status in ('COMPLETED', 'FAILED', 'CANCELLED') then at end
    from unnest(t_run, t_status, t_attempt, t_wake, t_wake_at, t_parked, t_result, t_error,
        t_retry_from, t_log_from)
      with ordinality t(run, status, attempt, wake, wake_at, parked, result, error, retry_from,
        log_from, i)
    where r.run_id = t.run and t.i <> all(bad)
      and (t.status <> 'RUNNING' or r.status <> 'RUNNING' or r.attempt <> t.attempt
        or t.log_from is not null);
  if cardinality(s_turn) > 0 then
    delete from agent_state a using unnest(s_turn, s_agent, s_key, s_value) s(t, agent, key, value)
      where s.value is null and s.t <> all(bad) and a.agent = s.agent and a.key = s.key;
    insert into agent_state (agent, key, value)
      select s.agent, s.key, s.value::json
        from unnest(s_turn, s_agent, s_key, s_value) s(t, agent, key, value)
        where s.value is not null and s.t <> all(bad) order by s.agent, s.key
      on conflict (agent, key) do update set value = excluded.value;
  end if;
  if cardinality(g_turn) > 0 then
    update signals s set consumed = true where s.ctid = any(array(
      select x.ctid from unnest(g_turn, g_run, g_n) g(t, run, n)
        cross join lateral (select s.ctid from signals s
          where s.run_id = g.run and s.n = g.n and not s.consumed offset 0) x
        where g.t <> all(bad)));
  end if;
  if cardinality(k_turn) > 0 then
    update completions c set consumed = true from unnest(k_turn, k_run, k_child) k(t, run, child)
      where c.parent = k.run and c.child = k.child and k.t <> all(bad);
  end if;
  if cardinality(o_turn) > 0 then
    if p_brokered then
      select array_agg(f.shard || E'\n' || f.owner) into near_key
        from unnest(f_shard, f_owner) with ordinality f(shard, owner, i)
        where p_local and f.i = any(held);
      select array_agg(m.near order by m.ord) into o_near from (
        select o.ord,
            coalesce(shard_of(o.agent, o.hash, y.mode, y.partitions) || E'\n' || f_owner[t_fence[o.t]]
              = any(near_key), false)
            and not exists (select 1 from outbox x where x.sender = o.sender and x.target = o.agent)
              as near
          from unnest(o_turn, o_agent, o_hash, o_sender)
            with ordinality o(t, agent, hash, sender, ord)
          left join types y on y.type = agent_type(o.agent)) m;
      return query
        with posted as (
          insert into outbox (sender, target, message_id, shard, target_hash, body)
            select o.sender, o.agent, o.id, f_shard[t_fence[o.t]], o.hash, o.body::json
              from unnest(o_turn, o_agent, o_hash, o_sender, o_id, o_body, o_near)
                with ordinality o(t, agent, hash, sender, id, body, near, ord)
              where o.t <> all(bad) and not o.near
            order by o.ord
            on conflict do nothing
            returning sender, target, message_id, n)
        select 0, 'outbox', null::int, null::text, false,
            p.target, p.sender, p.message_id, p.n, null::text from posted p;
    end if;
    return query
      with kept as (
        insert into inbox (agent, sender, message_id, shard, hash, body)
          select o.agent, o.sender, o.id, shard_of(o.agent, o.hash, y.mode, y.partitions), o.hash,
              o.body::json
            from unnest(o_turn, o_agent, o_hash, o_sender, o_id, o_body, o_near)
              with ordinality o(t, agent, hash, sender, id, body, near, ord)
            left join types y on y.type = agent_type(o.agent)
            where o.t <> all(bad) and coalesce(o.near, true)
          order by o.ord
          on conflict do nothing
          returning agent, sender, message_id, arrival, shard)
      select 0, 'routed', null::int, null::text, false,
          k.agent, k.sender, k.message_id, k.arrival, s.owner
        from kept k left join shards s on s.shard = k.shard;
  end if;

  -- 5. ends: messages are done, given-up ones kept aside, the parent told
  select array_agg(t.run order by t.run) into ended from unnest(t_run, t_status) with ordinality
    t(run, status, i)
    where t.status in ('COMPLETED', 'FAILED', 'CANCELLED') and t.i <> all(bad);
  if ended is not null then
    if array_remove(t_dead, null) <> '{}' then return query
      with letters as (
        insert into dead_letters
            (agent, sender, message_id, body, reason, attempts, last_error, run_id)
          select i.agent, i.sender, i.message_id, i.body, t.dead, r.attempt,
              coalesce(r.error ->> 'message', ''), t.run
            from unnest(t_run, t_dead) with ordinality t(run, dead, i)
            join runs r on r.run_id = t.run
            cross join lateral (select * from inbox i
              where i.run_id = t.run and i.state = 'b' offset 0) i
            where t.dead is not null and t.i <> all(bad) order by i.arrival
          returning id, agent, sender, body, reason, run_id),
      posted as (
        insert into outbox (sender, target, message_id, shard, target_hash, dead, body)
          select l.sender, 'dead:' || l.agent, 'dl-' || l.id, r.shard, r.hash, l.reason, l.body
            from letters l join runs r on r.run_id = l.run_id where p_brokered order by l.id
          returning sender, target, message_id, n, body)
      select t.i::int, 'dead', null::int, p.body::text, false, l.agent, p.sender, p.message_id, p.n,
          null::text
        from posted p join letters l on p.message_id = 'dl-' || l.id
        join unnest(t_run) with ordinality t(run, i) on t.run = l.run_id;
    end if;
    update inbox i set state = 'd', body = null where i.run_id = any(ended) and i.state = 'b';
    insert into completions (parent, child, status, result, error)
      select r.parent, r.run_id, r.status, r.result, r.error from runs r
        where r.run_id = any(ended) and r.parent is not null
      on conflict do nothing;
  end if;

  -- 6. a younger snapshot than every lock: what came while the turn was under way
  return query
    select n.i::int, 'note', null::int, n.reason, n.woken, null::text, null::text, null::text,
        null::bigint, null::text
      from (select t.i, r.cancel_requested as reason,
          t.status = 'SUSPENDED' and t.wake is not null and is_woken(r.run_id, r.agent, r.wake) as woken
        from unnest(t_run, t_status, t_wake) with ordinality t(run, status, wake, i)
        join runs r on r.run_id = t.run where t.i <> all(bad)) n
      where n.reason is not null or n.woken;
end $$;

-- Make types and agents known; rows that came before move to the right shards under the type's lock.
-- Returns what is now known of the types. The shard of an undeclared type goes first, and with it the
-- right to read under it: the cursors of the shards that follow are their own.
create or replace function declare_agents(p_types text[], p_partitions int, p_agents text[], p_hashes bigint[])
returns table (type text, partitions int) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare every text[]; clash text; made int; was text;
begin
  select coalesce(array_agg(x.t order by x.t), '{}') into every from (
    select unnest(p_types) as t union select agent_type(a) from unnest(p_agents) a) x;
  perform pg_advisory_xact_lock(hashtext('types of ' || current_schema()), hashtext(t.type))
    from unnest(every) t(type);
  for clash, was in
    select y.type, y.mode from types y where (y.type = any(p_types) and y.mode <> 'partitioned')
      or (y.type <> all(p_types) and y.type = any(every) and y.mode <> 'instance') order by y.type
  loop
    if exists (select 1 from runs r where agent_type(r.agent) = clash and r.open)
        or exists (select 1 from inbox n where agent_type(n.agent) = clash and n.state <> 'd')
        or exists (select 1 from hosts h where h.expires_at > present() and (clash = any(h.types)
          or exists (select 1 from shards s where s.type = clash and s.shard = any(h.shards))))
        or exists (select 1 from shards s join outbox o on o.shard = s.shard where s.type = clash) then
      raise exception '%|%', clash, was using errcode = 'CB002';
    end if;
    delete from cursors c using shards s where s.type = clash and c.shard = s.shard;
    delete from shards where type = clash;
    delete from types where type = clash;
  end loop;
  perform 1 from shards s where s.shard in (select 'u:' || t from unnest(every) t)
    order by s.shard for update;
  delete from shards s where s.shard in (select 'u:' || t from unnest(every) t);
  delete from cursors c where c.shard in (select 'u:' || t from unnest(every) t);
  insert into types (type, mode, partitions)
    select e.type, case when e.type = any(p_types) then 'partitioned' else 'instance' end,
        p_partitions
      from unnest(every) e(type) order by e.type on conflict do nothing;
  insert into shards (shard, type)
    select n.shard, n.type from (
      select 'p:' || y.type || ':' || p as shard, y.type
        from types y, generate_series(0, y.partitions - 1) p where y.type = any(p_types)
      union
      select shard_of(a.agent, a.hash, 'instance', 1), agent_type(a.agent)
        from unnest(p_agents, p_hashes) a(agent, hash)) n
      order by n.shard on conflict do nothing;
  get diagnostics made = row_count;
  perform 1 from runs r where r.shard in (select 'u:' || t from unnest(every) t) and r.open
    order by r.run_id for no key update;
  update runs r set shard = shard_of(r.agent, r.hash, y.mode, y.partitions) from types y
    where r.shard = 'u:' || y.type and y.type = any(every) and r.open;
  update inbox n set shard = shard_of(n.agent, n.hash, y.mode, y.partitions) from types y
    where n.shard = 'u:' || y.type and y.type = any(every) and n.state = 'p';
  update outbox o set shard = shard_of(substr(o.target, 6), o.target_hash, y.mode, y.partitions)
    from types y where o.shard = 'u:' || y.type and y.type = any(every) and o.dead is not null;
  if made > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return query select y.type, y.partitions from types y where y.type = any(every);
end $$;
