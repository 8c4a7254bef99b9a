-- The owner's two writes. Both lock first (share lock of the shard rows, then the runs, in key
-- order) and compare what they find under those locks; later statements write only for turns that
-- passed. Within plpgsql every statement has a snapshot younger than the locks before it: comparing
-- in the locking statement, or in a CTE beside the write, would not be a fence.
-- No statement joins two unnest()s: the committer's connection has hash joins switched off.
-- `is not distinct from` and `lateral … offset 0` keep the planner on the key (see 0001).
-- Functions only: takes no lock that anybody holds.

-- The database's clock. Tests replace it to make leases expire.
create function present() returns timestamptz
  language sql volatile as $$ select clock_timestamp() $$;

create function agent_type(agent text) returns text language sql immutable parallel safe
  return split_part(split_part(agent, '/', 1), ':', -1);

create function agent_tenant(agent text) returns text language sql immutable parallel safe
  return case when strpos(split_part(agent, '/', 1), ':') > 0 then split_part(agent, ':', 1)
              else 'default' end;

-- The shard of an agent whose type is declared as `mode`; of one nobody declared: u:<type>.
create function shard_of(agent text, hash bigint, mode text, partitions int) returns text
  language sql immutable parallel safe
  return case mode
    when 'partitioned' then 'p:' || agent_type(agent) || ':' || (hash % partitions)
    when 'instance' then
      'i:' || case when strpos(split_part(agent, '/', 1), ':') > 0 then '' else 'default:' end || agent
    else 'u:' || agent_type(agent) end;

-- Held by whoever inserts rows of these agents, so that a type is not declared in between.
create function lock_types(agents text[]) returns void language plpgsql set search_path from current
as $$
begin
  perform pg_advisory_xact_lock_shared(hashtext('types of ' || current_schema()), hashtext(t.type))
    from (select distinct agent_type(a) as type from unnest(agents) a order by 1) t;
end $$;

-- Whether something that a suspended run waits for is there already. Without a search path of its own
-- it is inlined where it is called (35 µs a call otherwise).
create function is_woken(r_run text, r_agent text, r_wake json) returns boolean
  language sql stable as $$
  select exists (select 1 from signals s where s.run_id = r_run and not s.consumed
      and s.name in (select json_array_elements_text(r_wake -> 'signals')))
    or (coalesce((r_wake ->> 'message')::boolean, false)
      and exists (select 1 from inbox i where i.agent = r_agent and i.body is not null
        and i.run_id is null))
    or exists (select 1 from completions c where c.parent = r_run and not c.consumed
      and c.child in (select json_array_elements_text(r_wake -> 'runs')))
$$;

-- Appends only: returns a row for each turn that was refused, nothing for the others.
create function append_entries(
  f_shard text[], f_owner text[], f_epoch bigint[],
  t_run text[], t_fence int[], t_expected int[], t_attempt int[],
  e_turn int[], e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[])
returns table (turn int, outcome text, actual int, detail text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[] := '{}'; asleep int[] := '{}'; at timestamptz := clock_timestamp();
  x record;
begin
  select coalesce(array_agg(l.i), '{}') into held from (
    select f.i from unnest(f_shard, f_owner, f_epoch) with ordinality f(shard, owner, epoch, i)
      join shards s on s.shard = f.shard and s.owner is not distinct from f.owner and s.epoch = f.epoch
      order by s.shard for share of s) l;
  perform 1 from runs r where r.run_id = any(t_run) order by r.run_id for no key update;
  for x in
    select t.i, t.attempt, t.expected, t.fence = any(held) as fenced,
        r.run_id is not null as known, r.shard = f_shard[t.fence] as ours,
        r.status, r.ended_at is not null as ended, coalesce(l.last, -1) as last
      from unnest(t_run, t_fence, t_expected, t_attempt)
        with ordinality t(run, fence, expected, attempt, i)
      left join runs r on r.run_id = t.run
      left join lateral (select max(e.seq) as last from event_log e where e.run_id = t.run) l on true
      where t.fence <> all(held) or r.run_id is null or r.shard <> f_shard[t.fence]
        or r.status <> 'RUNNING' or coalesce(l.last, -1) <> t.expected or r.attempt <> t.attempt
  loop
    turn := x.i; actual := x.last; detail := x.status;
    outcome := case when not x.fenced then 'lease' when not x.known then 'unknown'
      when not x.ours then 'lease' when x.ended then 'ended'
      when x.last <> x.expected then 'conflict' end;
    if outcome is null then asleep := asleep || x.i::int;
    else bad := bad || x.i::int; return next; end if;
  end loop;
  insert into event_log (run_id, seq, kind, position, payload, ts)
    select e.run, e.seq, e.kind, e.position, e.payload::json, at
      from unnest(e_turn, e_run, e_seq, e_kind, e_position, e_payload)
        e(t, run, seq, kind, position, payload)
      where e.t <> all(bad);
  if cardinality(asleep) > 0 then
    update runs r set status = 'RUNNING', attempt = t.attempt, wake = null, wake_at = null,
        parked = null, updated_at = at
      from unnest(t_run, t_attempt) with ordinality t(run, attempt, i)
      where r.run_id = t.run and t.i = any(asleep);
  end if;
end $$;

-- Whole turns. Returned rows: refused turns (lease, unknown, ended, conflict, missing), notes about
-- committed ones (note: cancel reason in detail, wake), and messages that became inbox rows (routed).
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
  s_turn int[], s_agent text[], s_key text[], s_value text[])
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[]; whys text[]; lasts int[]; statuses text[];
  ended text[]; wanted bigint; done bigint;
  at timestamptz := clock_timestamp();
begin
  -- 1. locks
  if cardinality(o_turn) > 0 or cardinality(n_turn) > 0 then
    perform lock_types(o_agent || n_agent);
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
    return query
      with kept as (
        insert into inbox (agent, sender, message_id, shard, hash, body)
          select o.agent, o.sender, o.id, shard_of(o.agent, o.hash, y.mode, y.partitions), o.hash,
              o.body::json
            from unnest(o_turn, o_agent, o_hash, o_sender, o_id, o_body)
              with ordinality o(t, agent, hash, sender, id, body, ord)
            left join types y on y.type = agent_type(o.agent)
            where o.t <> all(bad)
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
    insert into dead_letters (agent, sender, message_id, body, reason, attempts, last_error, run_id)
      select i.agent, i.sender, i.message_id, i.body, t.dead, r.attempt,
          coalesce(r.error ->> 'message', ''), t.run
        from unnest(t_run, t_dead) with ordinality t(run, dead, i)
        join runs r on r.run_id = t.run
        cross join lateral (select * from inbox i
          where i.run_id = t.run and i.state = 'b' offset 0) i
        where t.dead is not null and t.i <> all(bad) order by i.arrival;
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
