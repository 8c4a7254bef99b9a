-- The fast path of `commit_runs`, for the shapes that nearly all commits have, in fewer and smaller statements.
-- Either all commits are written, with the same result rows as there, or none, and the only row is 'general'. A
-- commit here starts, continues, suspends or completes a run. It may take messages, signals and answers, send
-- messages and replies if no broker is used, set state, and wait for answers of agents. Completion notifies the
-- parent and no other run. Created runs have no parent. `p_types`: types of the agents that get rows; `r_end`: runs
-- that complete and were not created here; `w_owner`: runs whose waits are replaced.
create or replace function commit_fast(
  f_shard text[], f_owner text[], f_epoch bigint[], p_types text[],
  r_run text[], r_fence int[], r_agent text[], r_expected int[], r_create boolean[],
  r_status text[], r_attempt int[], r_wake text[], r_wake_at timestamptz[], r_result text[], r_end text[],
  e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[],
  n_commit int[], n_hash bigint[], n_priority int[], n_retry text[], n_root text[], n_depth int[],
  n_deadline timestamptz[], n_version text[], n_trace text[], n_supervision text[],
  b_commit int[], b_sender text[], b_id text[],
  o_agent text[], o_hash bigint[], o_sender text[], o_id text[], o_body text[],
  g_run text[], g_n bigint[],
  k_run text[], k_key text[],
  s_agent text[], s_key text[], s_value text[],
  a_commit int[], a_run text[], a_key text[], a_status text[], a_result text[], a_error text[], a_by text[],
  a_last int[],
  w_owner text[], w_run text[], w_position text[], w_key text[], w_kind text[], w_agent text[],
  w_must boolean[], w_request text[], w_expires_at timestamptz[], p_transcripts json default null,
  p_usage json default null)
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  n int; fits boolean; places tid[]; changed int[]; cancelled int[]; parents text[] := '{}';
  b_place tid[]; b_of int[]; b_arrival bigint[]; older boolean; at timestamptz := clock_timestamp();
begin
  -- 1. locks, in the order of `commit_runs`
  if p_types <> '{}' then
    perform pg_advisory_xact_lock_shared(hashtext('types of ' || current_schema()), hashtext(t.type))
      from unnest(p_types) t(type);
  end if;
  perform 1 from unnest(f_shard, f_owner, f_epoch) f(shard, owner, epoch)
    join shards s on s.shard = f.shard and s.owner is not distinct from f.owner and s.epoch = f.epoch
    order by s.shard for share of s;
  get diagnostics n = row_count;
  fits := n = cardinality(f_shard);
  if r_end <> '{}' then
    parents := array(select r.parent from unnest(r_end) t(run)
      cross join lateral (select r.parent from runs r where r.run_id = t.run offset 0) r
      where r.parent is not null);
  end if;
  perform 1 from runs r where r.run_id = any(r_run || a_run || parents) order by r.run_id
    for no key update;

  -- 2. check that the fast path applies
  select fits and bool_and(x.same), array_agg(x.place order by x.i),
      array_agg(x.i) filter (where x.changes), array_agg(x.i) filter (where x.stops)
    into fits, places, changed, cancelled from (
    select t.i::int, r.place, r.cancel_requested is not null as stops,
        t.status <> 'RUNNING' or r.status <> 'RUNNING' or r.attempt <> t.attempt as changes,
        case when t.creates then r.run_id is null and l.last is null
          else coalesce(r.shard = f_shard[t.fence] and r.agent = t.agent and r.ended_at is null
            and coalesce(l.last, -1) = t.expected, false) end as same
      from unnest(r_run, r_fence, r_agent, r_expected, r_create, r_status, r_attempt)
        with ordinality t(run, fence, agent, expected, creates, status, attempt, i)
      left join lateral (select o.run_id, o.shard, o.agent, o.status, o.attempt, o.ended_at,
          o.cancel_requested, o.ctid as place from runs o where o.run_id = t.run offset 0) r on true
      left join lateral (select max(e.seq) as last from event_log e where e.run_id = t.run) l on true) x;
  if fits and cardinality(array_positions(r_expected, -1)) > cardinality(n_commit) then
    -- Submitted runs that start: their agents must have no older messages or runs of any sender waiting.
    fits := not exists (select from unnest(r_run, r_expected, r_create) t(run, expected, creates)
      cross join lateral (select r.agent, r.arrival from runs r where r.run_id = t.run offset 0) r
      where t.expected = -1 and not t.creates and waits_before(r.agent, r.arrival));
  end if;
  if fits and r_end <> '{}' then
    fits := not exists (select from unnest(r_end) t(run)
      cross join lateral (select r.parent from runs r where r.run_id = t.run offset 0) r
      where (r.parent is not null and r.parent <> all(parents))
        or exists (select from (select w.run_id, w.key from waits w where w.target_run = t.run offset 0) w
          where w.run_id is distinct from r.parent or w.key <> t.run)
        or exists (select from (select c.ended_at from runs c where c.parent = t.run offset 0) c
          where c.ended_at is null)
        or exists (select from (select asker_of(i.body) as asker, i.message_id from inbox i
            where i.run_id = t.run and i.state = 'b' offset 0) i
          where i.asker is not null and i.message_id <> all(a_key) and not exists (
            select from completions c where c.parent = i.asker and c.child = i.message_id offset 0)));
  end if;
  if fits and b_commit <> '{}' then
    -- The messages that these commits take must be there, and no other message for the agent may wait up to the
    -- youngest of them.
    with wanted as materialized (
      select b.t, m.* from unnest(b_commit, b_sender, b_id) b(t, sender, id)
        cross join lateral (select i.ctid as place, i.arrival, i.state, i.run_id, i.message_id,
            asker_of(i.body) as asker from inbox i
          where i.agent = r_agent[b.t] and i.sender = b.sender and i.message_id = b.id offset 0) m
        where m.state in ('p', 'l') or (m.state = 'b' and m.run_id = r_run[b.t]))
    select array_agg(w.place), array_agg(w.t), array_agg(w.arrival),
        coalesce(bool_or(w.asker is not null and r_status[w.t] = 'COMPLETED'
          and w.message_id <> all(a_key)), false)
        or exists (
          select from (select w.t, max(w.arrival) as upto, count(*) as taken from wanted w
            where w.run_id is null group by w.t) c
          where c.taken <> (select count(*) from (select i.arrival from inbox i
              where i.agent = r_agent[c.t] and i.body is not null and i.run_id is null
                and i.arrival <= c.upto order by i.arrival limit c.taken + 1) i)
            or r_create[c.t] and exists (select from runs o
              where o.agent = r_agent[c.t] and o.ended_at is null and o.arrival < c.upto offset 0))
      into b_place, b_of, b_arrival, older from wanted w;
    fits := cardinality(b_place) = cardinality(b_commit) and not older;
  end if;
  if fits is distinct from true then
    outcome := 'general';
    return next;
    return;
  end if;

  -- 3. writes
  if b_commit <> '{}' then
    update inbox i set run_id = r_run[b.t],
        state = case when r_status[b.t] = 'COMPLETED' then 'd' else 'b' end::"char",
        body = case when r_status[b.t] <> 'COMPLETED' then i.body end
      from unnest(b_place, b_of) b(place, t) where i.ctid = b.place;
    get diagnostics n = row_count;
    if n <> cardinality(b_commit) then
      raise exception 'two commits of one group want the same message' using errcode = 'CB001';
    end if;
  end if;
  if n_commit <> '{}' then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, root, depth, deadline_at,
        version, trace, supervision, arrival, status, attempt, wake, wake_at, result, log_from, created_at,
        updated_at, open, ended_at)
      select r_run[u.t], r_agent[u.t], agent_tenant(r_agent[u.t]),
          shard_of(r_agent[u.t], u.hash, y.mode, y.partitions), u.hash, u.priority, u.retry::json, u.root,
          u.depth, u.deadline, u.version, u.trace, u.supervision::json,
          coalesce((select min(b.arrival) from unnest(b_of, b_arrival) b(t, arrival) where b.t = u.t), 0),
          r_status[u.t], r_attempt[u.t], r_wake[u.t]::json, r_wake_at[u.t], r_result[u.t]::json, 0, at, at,
          r_status[u.t] <> 'COMPLETED', case when r_status[u.t] = 'COMPLETED' then at end
        from unnest(n_commit, n_hash, n_priority, n_retry, n_root, n_depth, n_deadline, n_version, n_trace,
            n_supervision)
          u(t, hash, priority, retry, root, depth, deadline, version, trace, supervision)
        left join types y on y.type = agent_type(r_agent[u.t])
        order by r_run[u.t];
  end if;
  insert into event_log (run_id, seq, kind, position, payload, ts)
    select e.run, e.seq, e.kind, e.position, e.payload::json, at
      from unnest(e_run, e_seq, e_kind, e_position, e_payload) e(run, seq, kind, position, payload);
  if changed is not null then
    update runs r set status = r_status[c.i], attempt = r_attempt[c.i], wake = r_wake[c.i]::json,
        wake_at = r_wake_at[c.i], parked = null, result = r_result[c.i]::json,
        error = case when r_status[c.i] <> 'COMPLETED' then r.error end, updated_at = at,
        open = r_status[c.i] <> 'COMPLETED', ended_at = case when r_status[c.i] = 'COMPLETED' then at end
      from unnest(changed) c(i) where r.ctid = places[c.i];
  end if;
  if s_agent <> '{}' then
    delete from agent_state a where a.ctid = any(array(
      select n.ctid from unnest(s_agent, s_key, s_value) s(agent, key, value)
        cross join lateral (select n.ctid from agent_state n
          where n.agent = s.agent and n.key = s.key offset 0) n
        where s.value is null));
    insert into agent_state (agent, key, value)
      select s.agent, s.key, s.value::json from unnest(s_agent, s_key, s_value) s(agent, key, value)
        where s.value is not null order by s.agent, s.key
      on conflict (agent, key) do update set value = excluded.value;
  end if;
  if p_transcripts is not null then
    perform write_transcripts(p_transcripts, r_run, r_agent, '{}');
  end if;
  if g_run <> '{}' then
    update signals s set consumed = true where s.ctid = any(array(
      select x.ctid from unnest(g_run, g_n) g(run, n)
        cross join lateral (select s.ctid from signals s
          where s.run_id = g.run and s.n = g.n and not s.consumed offset 0) x));
    get diagnostics n = row_count;
    fits := n = cardinality(g_run);
  end if;
  if k_run <> '{}' then
    update completions c set consumed = true where c.ctid = any(array(
      select x.ctid from unnest(k_run, k_key) k(run, key)
        cross join lateral (select c.ctid from completions c
          where c.parent = k.run and c.child = k.key and not c.consumed offset 0) x));
    get diagnostics n = row_count;
    fits := fits and n = cardinality(k_run);
  end if;
  if not fits then
    raise exception 'a signal or an answer that a commit takes is not there' using errcode = 'CB002';
  end if;
  if o_agent <> '{}' then
    return query
      with kept as (
        insert into inbox (agent, sender, message_id, shard, hash, body)
          select o.agent, o.sender, o.id, shard_of(o.agent, o.hash, y.mode, y.partitions), o.hash,
              o.body::json
            from unnest(o_agent, o_hash, o_sender, o_id, o_body)
              with ordinality o(agent, hash, sender, id, body, ord)
            left join types y on y.type = agent_type(o.agent)
          order by o.ord
          on conflict do nothing
          returning agent, sender, message_id, arrival, shard)
      select 0, 'routed', null::int, null::text, false,
          k.agent, k.sender, k.message_id, k.arrival, s.owner
        from kept k left join shards s on s.shard = k.shard;
  end if;

  -- 4. answers to other runs; a reply is written before the completion of the run that replies
  if a_commit <> '{}' then
    return query
      with kept as (
        insert into completions (parent, child, status, result, error, run, last_seq)
          select w.run_id, a.key, a.status, a.result::json, a.error::json, coalesce(a.by, r_run[a.t]),
              case when a.last >= 0 then a.last else (
                select max(e.seq) from event_log e where e.run_id = r_run[a.t]) end
            from unnest(a_commit, a_run, a_key, a_status, a_result, a_error, a_by, a_last)
              a(t, run, key, status, result, error, by, last)
            cross join lateral (select * from runs w where w.run_id = a.run offset 0) w
            where w.tenant = agent_tenant(r_agent[a.t]) and not w.swept and exists (
              select 1 from inbox i where i.agent = r_agent[a.t] and i.sender = 'agent:' || w.agent
                and i.message_id = a.key offset 0)
            order by w.run_id, a.key
          on conflict do nothing returning parent, run)
      select array_position(r_run, k.run), 'nudge', null::int, 'signal', false, r.agent, null::text,
          r.run_id, null::bigint, s.owner
        from kept k
        cross join lateral (select * from runs r where r.run_id = k.parent offset 0) r
        left join shards s on s.shard = r.shard
        where is_open(r.status);
  end if;
  if w_owner <> '{}' then
    delete from waits w where w.run_id = any(w_owner) and (w.run_id, w.position, w.key) not in (
      select n.run, n.position, n.key from unnest(w_run, w_position, w_key) n(run, position, key));
    if w_run <> '{}' then
      insert into waits (run_id, position, key, kind, agent, must, request, expires_at)
        select n.run, n.position, n.key, n.kind, n.agent, n.must, n.request::json, n.expires_at
          from unnest(w_run, w_position, w_key, w_kind, w_agent, w_must, w_request, w_expires_at)
            n(run, position, key, kind, agent, must, request, expires_at)
        on conflict (run_id, position, key) do update set kind = excluded.kind, agent = excluded.agent,
          target_run = excluded.target_run, must = excluded.must, request = excluded.request,
          expires_at = excluded.expires_at,
          changed_at = case when waits.must then waits.changed_at else excluded.changed_at end
        where (waits.must, waits.expires_at, waits.target_run)
          is distinct from (excluded.must, excluded.expires_at, excluded.target_run);
    end if;
  end if;
  if parents <> '{}' then
    return query
      with told as (
        insert into completions (parent, child, status, result, run, last_seq)
          select w.run_id, r.run_id, 'completed', r.result, r.run_id,
              coalesce((select max(e.seq) from event_log e where e.run_id = r.run_id), -1)
            from unnest(r_end) t(run)
            cross join lateral (select * from runs r where r.run_id = t.run offset 0) r
            cross join lateral (select * from runs w where w.run_id = r.parent offset 0) w
            where w.tenant = r.tenant and not w.swept
            order by w.run_id, r.run_id
          on conflict do nothing returning run, parent)
      select array_position(r_run, x.run), 'nudge', null::int, 'signal', false, r.agent, null::text,
          r.run_id, null::bigint, s.owner
        from told x
        cross join lateral (select * from runs r where r.run_id = x.parent offset 0) r
        left join shards s on s.shard = r.shard
        where is_open(r.status);
    perform give_places_back(r_end);
  end if;
  if r_end <> '{}' then
    update inbox i set state = 'd', body = null where i.run_id = any(r_end) and i.state = 'b';
    delete from waits w where w.run_id = any(r_end);
  end if;

  -- 5. with a snapshot younger than every lock: events that arrived while the commits were written
  if cancelled is not null or 'SUSPENDED' = any(r_status) then
    return query
      select n.i::int, 'note', null::int, n.reason, n.woken, null::text, null::text, null::text,
          null::bigint, null::text
        from (select t.i, r.cancel_requested as reason,
            t.status = 'SUSPENDED' and is_woken(r.run_id, r.agent, r.wake) as woken
          from unnest(r_run, r_status) with ordinality t(run, status, i)
          cross join lateral (select * from runs r where r.run_id = t.run offset 0) r) n
        where n.reason is not null or n.woken;
  end if;
  if true = any(w_must) then
    return query
      select array_position(r_run, x.run), 'cycle', null::int, c.places[1], false,
          array_to_string(c.agents, E'\n'), null::text, null::text, null::bigint, null::text
        from (select distinct w.run from unnest(w_run, w_agent, w_must) w(run, agent, must)
          where w.must and exists (select from (select o.attempt, o.status from runs o
              where o.agent = w.agent and o.ended_at is null offset 0) o
            where o.attempt > 0 or o.status <> 'PENDING')) x
        cross join lateral cycles_of(x.run) c;
  end if;
  if p_usage is not null then
    perform add_usage(p_usage, '{}', at);
  end if;
end $$;
