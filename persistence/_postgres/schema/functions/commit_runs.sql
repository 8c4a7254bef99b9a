-- Write commits of any shape. Returned rows: refused commits (lease, unknown, ended, conflict; missing: a message,
-- signal or answer that it takes is not there; early: an older message of the same sender waits; answered: the key of
-- an answer that arrived first; over: a position in detail, the limit as message_id), notes about written commits
-- (note: cancel reason in detail, wake), messages that became inbox rows (routed), owners to notify (nudge: kind in
-- detail, run or shard as message_id), wait cycles (cycle: position in detail, agents by line), withdrawn questions
-- (withdrawn), and with a broker outbox rows, their n as arrival (outbox; dead: a dead letter of that commit, its
-- body as detail).
-- `p_relations` holds the parts that few commits have: waits, answers, spawns, budgets, follows, posts; null if no commit
-- has any. `p_named`: other runs that these commits name. All affected runs are locked in one statement.
-- With a broker, a message becomes an inbox row directly only if this host owns the target's shard, which is
-- share-locked with the fences, and if the outbox holds no message of the same (sender, target).
create or replace function commit_runs(
  f_shard text[], f_owner text[], f_epoch bigint[],
  r_run text[], r_fence int[], r_agent text[], r_expected int[], r_create boolean[],
  r_status text[], r_attempt int[], r_wake text[], r_wake_at timestamptz[], r_parked text[],
  r_result text[], r_error text[], r_retry_from int[], r_dead text[], r_orphans text[],
  r_log_from int[],
  e_commit int[], e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[],
  n_commit int[], n_spawner text[], n_run text[], n_agent text[], n_hash bigint[], n_priority int[],
  n_retry text[], n_parent text[], n_root text[], n_depth int[], n_deadline timestamptz[],
  n_version text[], n_trace text[], n_supervision text[],
  b_commit int[], b_run text[], b_agent text[], b_sender text[], b_id text[],
  o_commit int[], o_agent text[], o_hash bigint[], o_sender text[], o_id text[], o_body text[],
  g_commit int[], g_run text[], g_n bigint[],
  k_commit int[], k_run text[], k_key text[],
  s_commit int[], s_agent text[], s_key text[], s_value text[],
  p_brokered boolean, p_local boolean, p_relations json, p_named text[], p_transcripts json default null,
  p_usage json default null)
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[]; whys text[]; lasts int[]; statuses text[];
  ended text[]; wanted bigint; done bigint; ending text[]; others text[]; late text[];
  concerned text[]; fresh int[]; quiet boolean; took_commit int[]; took_first bigint[];
  places tid[]; near_shard text[]; near_owner text[]; near_epoch bigint[]; near_key text[]; o_near boolean[];
  at timestamptz := clock_timestamp();
begin
  -- 1. locks
  if cardinality(o_commit) > 0 or cardinality(n_commit) > 0 then
    perform lock_types(o_agent || n_agent);
  end if;
  if p_brokered and p_local and cardinality(o_commit) > 0 then
    -- Other shards of this host that get messages: read without a lock, then locked with the fences.
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
  others := p_named;
  if r_status && array['COMPLETED', 'FAILED', 'CANCELLED'] then
    select array_agg(t.run) into ending from unnest(r_run, r_status) t(run, status)
      where t.status in ('COMPLETED', 'FAILED', 'CANCELLED');
    concerned := concerned_by_ends(ending, r_run, r_orphans, b_agent, b_sender, b_id);
    others := others || concerned;
  end if;
  perform 1 from runs r where r.run_id = any(r_run || others) order by r.run_id for no key update;
  if ending is not null then
    -- Lock runs that were added in the meantime without waiting: a wait here would break the lock order.
    if cardinality(concerned) > 0 then
      concerned := concerned_by_ends(ending, r_run, r_orphans, b_agent, b_sender, b_id);
    else
      concerned := array(select w.run_id from waits w where w.target_run = any(ending));
    end if;
    if not concerned <@ (r_run || others) then
      late := array(select r.run_id from runs r
        where r.run_id = any(concerned) and r.run_id <> all(r_run || others));
      perform 1 from runs r where r.run_id = any(late) order by r.run_id
        for no key update skip locked;
      get diagnostics done = row_count;
      if done <> cardinality(late) then
        raise exception 'others who wait for these runs came meanwhile' using errcode = '40001';
      end if;
    end if;
  end if;

  -- 2. check each commit
  select coalesce(array_agg(x.i) filter (where x.why is not null), '{}'),
      array_agg(x.why) filter (where x.why is not null),
      array_agg(x.last) filter (where x.why is not null),
      array_agg(x.status) filter (where x.why is not null),
      coalesce(array_agg(x.i) filter (where x.why is null and x.is_new), '{}'),
      array_agg(x.place order by x.i)
    into bad, whys, lasts, statuses, fresh, places from (
    select t.i::int, r.status, coalesce(l.last, -1) as last, r.run_id is null as is_new, r.place,
        case when t.fence <> all(held) then 'lease'
          when r.run_id is null then case when not t.creates then 'unknown'
            when l.last is distinct from nullif(t.expected, -1) then 'conflict' end
          when r.shard <> f_shard[t.fence] or r.agent <> t.agent then 'lease'
          when r.ended_at is not null then 'ended'
          when coalesce(l.last, -1) <> t.expected then 'conflict' end as why
      from unnest(r_run, r_fence, r_agent, r_expected, r_create)
        with ordinality t(run, fence, agent, expected, creates, i)
      left join lateral (select n.run_id, n.shard, n.agent, n.status, n.ended_at, n.ctid as place from runs n
        where n.run_id = t.run offset 0) r on true
      left join lateral (select max(e.seq) as last from event_log e where e.run_id = t.run) l on true) x;
  if cardinality(bad) > 0 then
    return query select x.i, x.why, x.last, x.status, false,
      null::text, null::text, null::text, null::bigint, null::text
      from unnest(bad, whys, lasts, statuses) x(i, why, last, status);
  end if;

  -- 3. the messages, signals and answers that a commit takes must still be there, and no older message of the same
  -- sender may be left waiting; otherwise the whole commit is refused
  if cardinality(b_commit) + cardinality(g_commit) + cardinality(k_commit) > 0 then
    declare short int[]; what text[]; whose text[];
    begin
      with wanted as materialized (
        select b.t, b.run, b.agent, b.sender, b.id, i.state, i.run_id, i.arrival
          from unnest(b_commit, b_run, b_agent, b_sender, b_id) b(t, run, agent, sender, id)
          left join lateral (select n.state, n.run_id, n.arrival from inbox n
            where n.agent = b.agent and n.sender = b.sender and n.message_id = b.id offset 0) i on true
          where b.t <> all(bad)),
      -- Up to the youngest message taken, every waiting message is either taken, too, or of another sender.
      taking as materialized (
        select w.t, w.agent, max(w.arrival) as upto from wanted w
          where w.run_id is null
            and (p_relations -> 'any_order' is null or not (p_relations -> 'any_order')::jsonb @> to_jsonb(w.t))
          group by w.t, w.agent),
      older as materialized (
        select c.t, o.sender, o.first from taking c
          cross join lateral (
            -- In the order of the index of waiting messages: the index by sender would read all messages that ever
            -- arrived.
            select i.sender, min(i.arrival) as first
              from (select n.sender, n.arrival from inbox n
                where n.agent = c.agent and n.body is not null and n.run_id is null
                  and n.arrival < c.upto order by n.arrival offset 0) i
              where i.arrival not in (select w.arrival from wanted w where w.arrival is not null)
              group by i.sender) o
        union all
        select c.t, q.sender, q.first from taking c cross join lateral queued_before(c.agent, c.upto) q
          where r_expected[c.t] = -1 and exists (select from runs o
            where o.agent = c.agent and o.ended_at is null and o.arrival < c.upto offset 0))
      select array_agg(m.t), array_agg(m.what), array_agg(m.whose) into short, what, whose from (
        select b.t, b.id as what, null as whose from wanted b
          where case when b.state in ('p', 'l') then false
              when b.state = 'b' then b.run_id <> b.run else true end
        union all
        select b.t, b.id, b.sender from older o
          join wanted b on b.t = o.t and b.run_id is null and b.sender = o.sender and b.arrival > o.first
        union all
        select g.t, 'signal ' || g.n, null from unnest(g_commit, g_run, g_n) g(t, run, n)
          left join lateral (select n.run_id from signals n
            where n.run_id = g.run and n.n = g.n and not n.consumed offset 0) s on true
          where g.t <> all(bad) and s.run_id is null
        union all
        select k.t, 'answer ' || k.key, null from unnest(k_commit, k_run, k_key) k(t, run, key)
          left join lateral (select n.parent from completions n
            where n.parent = k.run and n.child = k.key and not n.consumed offset 0) c on true
          where k.t <> all(bad) and c.parent is null) m;
      if short is not null then
        bad := bad || short;
        return query select m.t, case when m.whose is null then 'missing' else 'early' end, null::int,
          m.what, false, null::text, m.whose, null::text, null::bigint, null::text
          from unnest(short, what, whose) m(t, what, whose);
      end if;
    end;
  end if;

  -- 3'. queued runs that start: only after older messages and runs of their senders; there are hardly ever any
  if cardinality(array_positions(r_expected, -1)) > cardinality(fresh) then
    declare hasty int[];
    begin
      select array_agg(t.i::int) into hasty
        from unnest(r_run, r_expected, r_create) with ordinality t(run, expected, creates, i)
        cross join lateral (select r.agent, r.arrival from runs r where r.run_id = t.run offset 0) r
        where t.expected = -1 and not t.creates and t.i <> all(bad)
          and (exists (select from runs o
              where o.agent = r.agent and o.ended_at is null and o.arrival < r.arrival offset 0)
            or exists (select from inbox i where i.agent = r.agent and i.body is not null
              and i.run_id is null and i.arrival < r.arrival offset 0));
      if hasty is not null then
        hasty := array(select h.t from unnest(hasty) h(t) where exists (
          select from overtaking(r_run[h.t])));
        bad := bad || hasty;
        return query select h.t, 'early', null::int, m.message_id, false, null::text, m.sender,
            null::text, null::bigint, null::text
          from unnest(hasty) h(t) cross join lateral overtaking(r_run[h.t]) m;
      end if;
    end;
  end if;

  -- 3a. waits that end without an answer: the commit is refused if the answer has arrived by now
  if p_relations -> 'unanswered' is not null then
    declare answered int[]; keys text[];
    begin
      select array_agg(u.t), array_agg(u.key) into answered, keys
        from json_to_recordset(p_relations -> 'unanswered') as u(t int, key text)
        cross join lateral (select c.consumed from completions c
          where c.parent = r_run[u.t] and c.child = u.key offset 0) c
        where u.t <> all(bad) and not c.consumed;
      if answered is not null then
        bad := bad || answered;
        return query select m.t, 'answered', null::int, m.key, false,
          null::text, null::text, null::text, null::bigint, null::text
          from unnest(answered, keys) m(t, key);
      end if;
    end;
  end if;

  -- 3b. budgets of their trees; the budget rows stay locked
  if p_relations is not null then
    declare over int[]; places text[]; limits text[];
    begin
      select array_agg(x.t), array_agg(x.place), array_agg(x.reason) into over, places, limits
        from spend_budgets(p_relations, r_run, bad, ending) x(t, place, reason);
      if over is not null then
        bad := bad || over;
        return query select x.t, 'over', null::int, x.place, false,
          null::text, null::text, x.reason, null::bigint, null::text
          from unnest(over, places, limits) x(t, place, reason);
      end if;
    end;
  end if;

  -- 4. writes, only for commits that passed; a run that is created and ends in the same commit is written once
  select array_agg(t.run order by t.run) into ended from unnest(r_run, r_status) with ordinality
    t(run, status, i)
    where t.status in ('COMPLETED', 'FAILED', 'CANCELLED') and t.i <> all(bad);
  -- Most completions affect no other run.
  quiet := ended is not null and cardinality(concerned) = 0 and p_relations is null
    and array_remove(r_dead, null) = '{}';
  if cardinality(b_commit) > 0 then
    select count(*) into wanted from unnest(b_commit) b(t) where b.t <> all(bad);
    with taken as (
      update inbox i set run_id = b.run,
          state = case when b.is_over then 'd' else 'b' end::"char",
          body = case when not b.is_over then i.body end
        from (select u.*, m.place, quiet and r_status[u.t] in ('COMPLETED', 'FAILED', 'CANCELLED') as is_over
          from unnest(b_commit, b_run, b_agent, b_sender, b_id) u(t, run, agent, sender, id)
          cross join lateral (select n.ctid as place from inbox n
            where n.agent = u.agent and n.sender = u.sender and n.message_id = u.id offset 0) m
          where u.t <> all(bad)) b
        where i.ctid = b.place and (i.state in ('p', 'l') or i.run_id = b.run)
        returning b.t, i.arrival)
      select sum(k.n), array_agg(k.t), array_agg(k.first) into done, took_commit, took_first
        from (select t.t, count(*) as n, min(t.arrival) as first from taken t group by t.t) k;
    if done is distinct from nullif(wanted, 0) then
      raise exception 'two commits of one group want the same message' using errcode = 'CB001';
    end if;
  end if;
  if p_relations -> 'releases' is not null then
    update inbox i set state = 'p', run_id = null, alone = true where i.ctid = any(array(
      select m.ctid from json_to_recordset(p_relations -> 'releases') as x(t int, sender text, id text)
        cross join lateral (select n.ctid, n.state, n.run_id from inbox n
          where n.agent = r_agent[x.t] and n.sender = x.sender and n.message_id = x.id offset 0) m
        where x.t <> all(bad)
          and (m.state in ('p', 'l') or (m.state = 'b' and m.run_id = r_run[x.t]))));
  end if;
  if cardinality(fresh) > 0 then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, parent, root, depth,
        deadline_at, version, trace, supervision, arrival, status, attempt, wake, wake_at, parked, result,
        error, retry_from, log_from, created_at, updated_at, open, ended_at, ended_as)
      select n.run, n.agent, agent_tenant(n.agent), shard_of(n.agent, n.hash, y.mode, y.partitions),
          n.hash, n.priority, n.retry::json, n.parent, n.root, n.depth, n.deadline, n.version, n.trace,
          n.supervision::json, coalesce(took_first[array_position(took_commit, n.t)], 0), n.status,
          r_attempt[n.t], r_wake[n.t]::json, r_wake_at[n.t], r_parked[n.t], r_result[n.t]::json,
          case when n.status not in ('RUNNING', 'SUSPENDED') then r_error[n.t]::json end,
          r_retry_from[n.t], coalesce(r_log_from[n.t], 0), at, at, not n.is_over,
          case when n.is_over then at end,
          case when n.status in ('FAILED', 'CANCELLED') then n.status end
        from (select u.*, r_status[u.t] as status,
            r_status[u.t] in ('COMPLETED', 'FAILED', 'CANCELLED') as is_over
          from unnest(n_commit, n_spawner, n_run, n_agent, n_hash, n_priority, n_retry, n_parent, n_root,
              n_depth, n_deadline, n_version, n_trace, n_supervision)
            u(t, spawner, run, agent, hash, priority, retry, parent, root, depth, deadline, version,
              trace, supervision)
          where u.spawner is null and u.t = any(fresh) and u.t <> all(bad)) n
        left join types y on y.type = agent_type(n.agent)
      order by n.run;
  end if;
  if cardinality(n_commit) > cardinality(fresh) then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, parent, root, depth,
        deadline_at, version, trace, supervision, cancel_requested, arrival)
      select n.run, n.agent, agent_tenant(n.agent), shard_of(n.agent, n.hash, y.mode, y.partitions),
          n.hash, n.priority, n.retry::json, n.parent, n.root, n.depth, n.deadline, n.version, n.trace,
          n.supervision::json, p.cancel_requested, n.drawn
        from (select u.*, next_arrival() as drawn
          from unnest(n_commit, n_spawner, n_run, n_agent, n_hash, n_priority, n_retry, n_parent, n_root,
              n_depth, n_deadline, n_version, n_trace, n_supervision)
            u(t, spawner, run, agent, hash, priority, retry, parent, root, depth, deadline, version,
              trace, supervision)
          where u.spawner is not null offset 0) n
        left join types y on y.type = agent_type(n.agent)
        left join lateral (select r.cancel_requested from runs r where r.run_id = n.spawner offset 0) p
          on true
        where n.t <> all(bad)
      order by n.run on conflict do nothing;
    if p_relations is not null then
      perform boot_children(p_relations, bad);
    end if;
  end if;
  insert into event_log (run_id, seq, kind, position, payload, ts)
    select e.run, e.seq, e.kind, e.position, e.payload::json, at
      from unnest(e_commit, e_run, e_seq, e_kind, e_position, e_payload)
        e(t, run, seq, kind, position, payload)
      where e.t <> all(bad);
  if cardinality(fresh) < cardinality(r_run) then
    update runs r set status = t.status, attempt = t.attempt, wake = t.wake::json, wake_at = t.wake_at,
        parked = t.parked, result = t.result::json,
        error = case when t.status in ('RUNNING', 'SUSPENDED') then r.error
          else t.error::json end,
        retry_from = coalesce(t.retry_from, r.retry_from), log_from = coalesce(t.log_from, r.log_from),
        updated_at = at, open = t.status not in ('COMPLETED', 'FAILED', 'CANCELLED'),
        ended_at = case when t.status in ('COMPLETED', 'FAILED', 'CANCELLED') then at end,
        ended_as = case when t.status in ('FAILED', 'CANCELLED') then t.status end
      from unnest(places, r_status, r_attempt, r_wake, r_wake_at, r_parked, r_result, r_error,
          r_retry_from, r_log_from)
        with ordinality t(place, status, attempt, wake, wake_at, parked, result, error, retry_from,
          log_from, i)
      where r.ctid = t.place and t.i <> all(bad) and t.i <> all(fresh)
        and (t.status <> 'RUNNING' or r.status <> 'RUNNING' or r.attempt <> t.attempt
          or t.log_from is not null);
  end if;
  if cardinality(s_commit) > 0 then
    delete from agent_state a where a.ctid = any(array(
      select n.ctid from unnest(s_commit, s_agent, s_key, s_value) s(t, agent, key, value)
        cross join lateral (select n.ctid from agent_state n
          where n.agent = s.agent and n.key = s.key offset 0) n
        where s.value is null and s.t <> all(bad)));
    insert into agent_state (agent, key, value)
      select s.agent, s.key, s.value::json
        from unnest(s_commit, s_agent, s_key, s_value) s(t, agent, key, value)
        where s.value is not null and s.t <> all(bad) order by s.agent, s.key
      on conflict (agent, key) do update set value = excluded.value;
  end if;
  if p_transcripts is not null then
    perform write_transcripts(p_transcripts, r_run, r_agent, bad);
  end if;
  if cardinality(g_commit) > 0 then
    update signals s set consumed = true where s.ctid = any(array(
      select x.ctid from unnest(g_commit, g_run, g_n) g(t, run, n)
        cross join lateral (select s.ctid from signals s
          where s.run_id = g.run and s.n = g.n and not s.consumed offset 0) x
        where g.t <> all(bad)));
  end if;
  if cardinality(k_commit) > 0 then
    update completions c set consumed = true where c.ctid = any(array(
      select n.ctid from unnest(k_commit, k_run, k_key) k(t, run, key)
        cross join lateral (select n.ctid from completions n
          where n.parent = k.run and n.child = k.key offset 0) n
        where k.t <> all(bad)));
  end if;
  if cardinality(o_commit) > 0 then
    if p_brokered then
      select array_agg(f.shard || E'\n' || f.owner) into near_key
        from unnest(f_shard, f_owner) with ordinality f(shard, owner, i)
        where p_local and f.i = any(held);
      select array_agg(m.near order by m.ord) into o_near from (
        select o.ord,
            coalesce(shard_of(o.agent, o.hash, y.mode, y.partitions) || E'\n' || f_owner[r_fence[o.t]]
              = any(near_key), false)
            and not exists (select 1 from outbox x where x.sender = o.sender and x.target = o.agent)
              as near
          from unnest(o_commit, o_agent, o_hash, o_sender)
            with ordinality o(t, agent, hash, sender, ord)
          left join types y on y.type = agent_type(o.agent)) m;
      return query
        with posted as (
          insert into outbox (sender, target, message_id, shard, target_hash, body)
            select o.sender, o.agent, o.id, f_shard[r_fence[o.t]], o.hash, o.body::json
              from unnest(o_commit, o_agent, o_hash, o_sender, o_id, o_body, o_near)
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
            from unnest(o_commit, o_agent, o_hash, o_sender, o_id, o_body, o_near)
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

  -- 5. answers, waits, follows and posts; a reply is written before the completion of the run that replies
  if p_relations is not null then
    return query select x.t, 'nudge', null::int, x.kind, false, x.agent, null::text, x.name,
        x.place, x.owner
      from write_relations(p_relations, r_run, r_agent, bad, p_brokered) x;
  end if;

  -- 6. completions: mark messages as done, keep given-up ones as dead letters, answer all waiting runs
  if ended is not null then
    if array_remove(r_dead, null) <> '{}' then return query
      with letters as (
        insert into dead_letters
            (agent, sender, message_id, body, reason, attempts, last_error, run_id)
          select i.agent, i.sender, i.message_id, i.body, t.dead, r.attempt,
              ltrim(coalesce(r.error ->> 'message', '')
                || case when count(*) over (partition by t.run) > 1 then format(
                  ' (given up with %s other message(s) of its run)',
                  count(*) over (partition by t.run) - 1) else '' end), t.run
            from unnest(r_run, r_dead) with ordinality t(run, dead, i)
            cross join lateral (select * from runs r where r.run_id = t.run offset 0) r
            cross join lateral (select * from inbox i
              where i.run_id = t.run and i.state = 'b' offset 0) i
            where t.dead is not null and t.i <> all(bad) order by i.arrival
          returning id, agent, sender, body, reason, run_id),
      posted as (
        insert into outbox (sender, target, message_id, shard, target_hash, dead, body)
          select l.sender, 'dead:' || l.agent, 'dl-' || l.id, r.shard, r.hash, l.reason, l.body
            from letters l cross join lateral (select * from runs r where r.run_id = l.run_id offset 0) r
            where p_brokered order by l.id
          returning sender, target, message_id, n, body)
      -- Both lists are in the order of the dead letters.
      select array_position(r_run, u.run), 'dead', null::int, u.body, false, u.agent, u.sender, u.id, u.n,
          null::text
        from (select array_agg(p.n order by p.n) as ns, array_agg(p.message_id order by p.n) as ids,
            array_agg(p.body::text order by p.n) as bodies from posted p) p
        cross join (select array_agg(l.run_id order by l.id) as runs,
            array_agg(l.agent order by l.id) as agents, array_agg(l.sender order by l.id) as senders
          from letters l) l
        cross join lateral unnest(p.ns, p.ids, p.bodies, l.runs, l.agents, l.senders)
          u(n, id, body, run, agent, sender)
        where u.n is not null;
    end if;
    if cardinality(concerned) > 0 or p_relations is not null then
      return query select array_position(r_run, x.by), 'nudge', null::int, 'signal', false, r.agent,
          null::text, r.run_id, null::bigint, s.owner
        from notify_ends(ended) x(by, waiter)
        cross join lateral (select * from runs r where r.run_id = x.waiter offset 0) r
        left join shards s on s.shard = r.shard
        where is_open(r.status);
      perform give_places_back(ended);
      if array_remove(r_orphans, null) <> '{}' then
        return query select array_position(r_run, x.by), 'nudge', null::int, 'cancel', false, r.agent,
            null::text, r.run_id, null::bigint, s.owner
          from resolve_orphans(ended, r_run, r_orphans) x(by, orphan)
          cross join lateral (select * from runs r where r.run_id = x.orphan offset 0) r
          left join shards s on s.shard = r.shard;
      end if;
    end if;
    if quiet and cardinality(fresh) > 0 then
      ended := array(select t.run from unnest(r_run) with ordinality t(run, i)
        where t.run = any(ended) and t.i <> all(fresh));
    end if;
    if cardinality(ended) > 0 then
      update inbox i set state = 'd', body = null where i.run_id = any(ended) and i.state = 'b';
      delete from waits w where w.run_id = any(ended);
    end if;
  end if;

  -- 7. with a snapshot younger than every lock: events that arrived while the commits were written
  return query
    select n.i::int, 'note', null::int, n.reason, n.woken, null::text, null::text, null::text,
        null::bigint, null::text
      from (select t.i, r.cancel_requested as reason,
          t.status = 'SUSPENDED' and t.wake is not null and is_woken(r.run_id, r.agent, r.wake) as woken
        from unnest(r_run, r_status, r_wake) with ordinality t(run, status, wake, i)
        cross join lateral (select * from runs r where r.run_id = t.run offset 0) r
        where t.i <> all(bad) and (t.i <> all(fresh) or t.status = 'SUSPENDED')) n
      where n.reason is not null or n.woken;
  if p_relations is not null then
    return query
      select x.t, 'cycle', null::int, c.places[1], false, array_to_string(c.agents, E'\n'), null::text,
          null::text, null::bigint, null::text
        from (
          select m.t::int from json_array_elements_text(p_relations -> 'must') m(t)
          union
          -- The format of hosts of the previous release.
          select w.t from json_to_recordset(p_relations -> 'waits') as w(t int, must boolean) where w.must) x
        cross join lateral cycles_of(r_run[x.t]) c
        where x.t <> all(bad);
    if p_relations -> 'withdraws' is not null then
      return query select 0, 'withdrawn', null::int, null::text, false, w.agent, w.sender, w.id,
          null::bigint, null::text
        from withdraw_questions(p_relations, bad) w;
    end if;
  end if;
  if p_usage is not null then
    perform add_usage(p_usage, bad, at);
  end if;
end $$;
