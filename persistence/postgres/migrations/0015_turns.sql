-- Turns: what a commit looks at under its locks.
-- Functions take another's place: no lock that anybody holds for long. Hosts of the release before keep working.
-- One index takes another's place, under a lock that keeps writers of `inbox` waiting: seconds for millions of rows.

-- What waits in an agent's inbox, without what its runs have: a run that receives 100,000 messages has
-- them all, and each commit that takes one looks whether an older one of its sender waits.
create index inbox_waiting on inbox (agent, arrival) where body is not null and run_id is null;
drop index inbox_of_agent;

-- A message that a run gave back when it failed with several: it starts a run by itself. Hosts of the
-- release before give it to a run with others.
alter table inbox add column alone boolean not null default false;

-- Take back refused questions, as far as nobody has begun them: with the turn that records the refusal. Their
-- ids stay known: a copy may be on its way.
create function withdraw_questions(p_talk json, p_bad int[])
returns table (agent text, sender text, id text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare x record;
begin
  for x in
    select * from json_to_recordset(p_talk -> 'withdraws')
        as w(t int, agent text, hash bigint, sender text, id text)
      where w.t <> all(p_bad) order by w.agent, w.sender, w.id
  loop
    -- In the order of `ingest_mail`: the inbox comes before the outbox.
    insert into inbox (agent, sender, message_id, shard, hash, state)
      select x.agent, x.sender, x.id, shard_of(x.agent, x.hash, y.mode, y.partitions), x.hash, 'd'
        from outbox o left join types y on y.type = agent_type(x.agent)
        where o.sender = x.sender and o.target = x.agent and o.message_id = x.id
      on conflict do nothing;
    delete from outbox o where o.sender = x.sender and o.target = x.agent and o.message_id = x.id;
    update inbox i set state = 'd', body = null
      where i.agent = x.agent and i.sender = x.sender and i.message_id = x.id and i.state = 'p';
    agent := x.agent; sender := x.sender; id := x.id;
    return next;
  end loop;
end $$;

-- As in 0008.
create or replace function commit_turns(
  f_shard text[], f_owner text[], f_epoch bigint[],
  t_run text[], t_fence int[], t_agent text[], t_expected int[], t_create boolean[],
  t_status text[], t_attempt int[], t_wake text[], t_wake_at timestamptz[], t_parked text[],
  t_result text[], t_error text[], t_retry_from int[], t_dead text[], t_orphans text[],
  t_log_from int[],
  e_turn int[], e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[],
  n_turn int[], n_spawner text[], n_run text[], n_agent text[], n_hash bigint[], n_priority int[],
  n_retry text[], n_parent text[], n_root text[], n_depth int[], n_deadline timestamptz[],
  n_version text[], n_trace text[], n_supervision text[],
  b_turn int[], b_run text[], b_agent text[], b_sender text[], b_id text[],
  o_turn int[], o_agent text[], o_hash bigint[], o_sender text[], o_id text[], o_body text[],
  g_turn int[], g_run text[], g_n bigint[],
  k_turn int[], k_run text[], k_key text[],
  s_turn int[], s_agent text[], s_key text[], s_value text[],
  p_brokered boolean, p_local boolean, p_talk json, p_named text[])
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[]; whys text[]; lasts int[]; statuses text[];
  ended text[]; wanted bigint; done bigint; ending text[]; others text[]; late text[];
  concerned text[];
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
  others := p_named;
  if t_status && array['COMPLETED', 'FAILED', 'CANCELLED'] then
    select array_agg(t.run) into ending from unnest(t_run, t_status) t(run, status)
      where t.status in ('COMPLETED', 'FAILED', 'CANCELLED');
    concerned := concerned_by_ends(ending, t_run, t_orphans, b_agent, b_sender, b_id);
    others := others || concerned;
  end if;
  perform 1 from runs r where r.run_id = any(t_run || others) order by r.run_id for no key update;
  if ending is not null then
    -- Who came meanwhile is locked too, without waiting: that would be out of order.
    if cardinality(concerned) > 0 then
      concerned := concerned_by_ends(ending, t_run, t_orphans, b_agent, b_sender, b_id);
    else
      concerned := array(select w.run_id from waits w where w.target_run = any(ending));
    end if;
    if not concerned <@ (t_run || others) then
      late := array(select r.run_id from runs r
        where r.run_id = any(concerned) and r.run_id <> all(t_run || others));
      perform 1 from runs r where r.run_id = any(late) order by r.run_id
        for no key update skip locked;
      get diagnostics done = row_count;
      if done <> cardinality(late) then
        raise exception 'others who wait for these runs came meanwhile' using errcode = '40001';
      end if;
    end if;
  end if;

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

  -- 3. what they take must still be there, and nothing older of its sender may be left waiting: a turn
  -- short of one, or ahead of one, is refused whole
  if cardinality(b_turn) + cardinality(g_turn) + cardinality(k_turn) > 0 then
    declare short int[]; what text[]; whose text[];
    begin
      with wanted as materialized (
        select b.t, b.run, b.agent, b.sender, b.id, i.state, i.run_id, i.arrival
          from unnest(b_turn, b_run, b_agent, b_sender, b_id) b(t, run, agent, sender, id)
          left join inbox i on i.agent = b.agent and i.sender = b.sender and i.message_id = b.id
          where b.t <> all(bad)),
      -- Up to the youngest message taken, what waits is what is taken, or of other senders.
      older as materialized (
        select c.t, o.sender, o.first from (
            select w.t, w.agent, max(w.arrival) as upto from wanted w
              where w.run_id is null
                and (p_talk -> 'any_order' is null or not (p_talk -> 'any_order')::jsonb @> to_jsonb(w.t))
              group by w.t, w.agent) c
          cross join lateral (
            select i.sender, min(i.arrival) as first from inbox i
              where i.agent = c.agent and i.body is not null and i.run_id is null
                and i.arrival < c.upto
                and i.arrival not in (select w.arrival from wanted w where w.arrival is not null)
              group by i.sender) o)
      select array_agg(m.t), array_agg(m.what), array_agg(m.whose) into short, what, whose from (
        select b.t, b.id as what, null as whose from wanted b
          where case when b.state in ('p', 'l') then false
              when b.state = 'b' then b.run_id <> b.run else true end
        union all
        select b.t, b.id, b.sender from older o
          join wanted b on b.t = o.t and b.run_id is null and b.sender = o.sender and b.arrival > o.first
        union all
        select g.t, 'signal ' || g.n, null from unnest(g_turn, g_run, g_n) g(t, run, n)
          left join signals s on s.run_id = g.run and s.n = g.n and not s.consumed
          where g.t <> all(bad) and s.run_id is null
        union all
        select k.t, 'answer ' || k.key, null from unnest(k_turn, k_run, k_key) k(t, run, key)
          left join completions c on c.parent = k.run and c.child = k.key and not c.consumed
          where k.t <> all(bad) and c.parent is null) m;
      if short is not null then
        bad := bad || short;
        return query select m.t, case when m.whose is null then 'missing' else 'early' end, null::int,
          m.what, false, null::text, m.whose, null::text, null::bigint, null::text
          from unnest(short, what, whose) m(t, what, whose);
      end if;
    end;
  end if;

  -- 3a. waits that end without an answer: one that is there by now counts
  if p_talk -> 'unanswered' is not null then
    declare answered int[]; keys text[];
    begin
      select array_agg(u.t), array_agg(u.key) into answered, keys
        from json_to_recordset(p_talk -> 'unanswered') as u(t int, key text)
        join completions c on c.parent = t_run[u.t] and c.child = u.key and not c.consumed
        where u.t <> all(bad);
      if answered is not null then
        bad := bad || answered;
        return query select m.t, 'answered', null::int, m.key, false,
          null::text, null::text, null::text, null::bigint, null::text
          from unnest(answered, keys) m(t, key);
      end if;
    end;
  end if;

  -- 3b. what their trees have a place for; the accounts stay locked
  if p_talk is not null then
    declare over int[]; places text[]; limits text[];
    begin
      select array_agg(x.t), array_agg(x.place), array_agg(x.reason) into over, places, limits
        from spend_budgets(p_talk, t_run, bad, ending) x(t, place, reason);
      if over is not null then
        bad := bad || over;
        return query select x.t, 'over', null::int, x.place, false,
          null::text, null::text, x.reason, null::bigint, null::text
          from unnest(over, places, limits) x(t, place, reason);
      end if;
    end;
  end if;

  -- 4. writes, only for the turns that passed
  if cardinality(b_turn) > 0 then
    select count(*) into wanted from unnest(b_turn) b(t) where b.t <> all(bad);
    update inbox i set state = 'b', run_id = b.run
      from unnest(b_turn, b_run, b_agent, b_sender, b_id) b(t, run, agent, sender, id)
      where i.agent = b.agent and i.sender = b.sender and i.message_id = b.id and b.t <> all(bad)
        and (i.state in ('p', 'l') or i.run_id = b.run);
    get diagnostics done = row_count;
    if done <> wanted then
      raise exception 'two turns of one group want the same message' using errcode = 'CB001';
    end if;
  end if;
  if p_talk -> 'releases' is not null then
    update inbox i set state = 'p', run_id = null, alone = true
      from json_to_recordset(p_talk -> 'releases') as x(t int, sender text, id text)
      where x.t <> all(bad) and i.agent = t_agent[x.t] and i.sender = x.sender and i.message_id = x.id
        and (i.state in ('p', 'l') or (i.state = 'b' and i.run_id = t_run[x.t]));
  end if;
  if cardinality(n_turn) > 0 then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, parent, root, depth,
        deadline_at, version, trace, supervision, cancel_requested, arrival)
      select n.run, n.agent, agent_tenant(n.agent), shard_of(n.agent, n.hash, y.mode, y.partitions),
          n.hash, n.priority, n.retry::json, n.parent, n.root, n.depth, n.deadline, n.version, n.trace,
          n.supervision::json, p.cancel_requested,
          coalesce(n.drawn,
            (select min(i.arrival) from inbox i where i.run_id = n.run and i.state = 'b'), 0)
        from (select u.*, case when u.spawner is not null then next_arrival() end as drawn
          from unnest(n_turn, n_spawner, n_run, n_agent, n_hash, n_priority, n_retry, n_parent, n_root,
              n_depth, n_deadline, n_version, n_trace, n_supervision)
            u(t, spawner, run, agent, hash, priority, retry, parent, root, depth, deadline, version,
              trace, supervision)
          offset 0) n
        left join types y on y.type = agent_type(n.agent)
        left join runs p on p.run_id = n.spawner
        where n.t <> all(bad)
      order by n.run on conflict do nothing;
    if p_talk is not null then
      perform boot_children(p_talk, bad);
    end if;
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
    update completions c set consumed = true from unnest(k_turn, k_run, k_key) k(t, run, key)
      where c.parent = k.run and c.child = k.key and k.t <> all(bad);
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

  -- 5. what the turns say to others; a reply comes before the end of who replies
  if p_talk is not null then
    return query select x.t, 'nudge', null::int, x.kind, false, x.agent, null::text, x.name,
        x.place, x.owner
      from talk(p_talk, t_run, t_agent, bad, p_brokered) x;
  end if;

  -- 6. ends: messages are done, given-up ones kept aside, all who wait for the end told
  select array_agg(t.run order by t.run) into ended from unnest(t_run, t_status) with ordinality
    t(run, status, i)
    where t.status in ('COMPLETED', 'FAILED', 'CANCELLED') and t.i <> all(bad);
  if ended is not null then
    if array_remove(t_dead, null) <> '{}' then return query
      with letters as (
        insert into dead_letters
            (agent, sender, message_id, body, reason, attempts, last_error, run_id)
          select i.agent, i.sender, i.message_id, i.body, t.dead, r.attempt,
              ltrim(coalesce(r.error ->> 'message', '')
                || case when count(*) over (partition by t.run) > 1 then format(
                  ' (given up with %s other message(s) of its run)',
                  count(*) over (partition by t.run) - 1) else '' end), t.run
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
    -- Most ends concern nobody else.
    if cardinality(concerned) > 0 or p_talk is not null then
      return query select array_position(t_run, x.by), 'nudge', null::int, 'signal', false, r.agent,
          null::text, r.run_id, null::bigint, s.owner
        from tell_ends(ended) x(by, waiter)
        join runs r on r.run_id = x.waiter and is_open(r.status)
        left join shards s on s.shard = r.shard;
      perform give_places_back(ended);
      if array_remove(t_orphans, null) <> '{}' then
        return query select array_position(t_run, x.by), 'nudge', null::int, 'cancel', false, r.agent,
            null::text, r.run_id, null::bigint, s.owner
          from resolve_orphans(ended, t_run, t_orphans) x(by, orphan)
          join runs r on r.run_id = x.orphan left join shards s on s.shard = r.shard;
      end if;
    end if;
    update inbox i set state = 'd', body = null where i.run_id = any(ended) and i.state = 'b';
    delete from waits w where w.run_id = any(ended);
  end if;

  -- 7. a younger snapshot than every lock: what came while the turn was under way
  return query
    select n.i::int, 'note', null::int, n.reason, n.woken, null::text, null::text, null::text,
        null::bigint, null::text
      from (select t.i, r.cancel_requested as reason,
          t.status = 'SUSPENDED' and t.wake is not null and is_woken(r.run_id, r.agent, r.wake) as woken
        from unnest(t_run, t_status, t_wake) with ordinality t(run, status, wake, i)
        join runs r on r.run_id = t.run where t.i <> all(bad)) n
      where n.reason is not null or n.woken;
  if p_talk is not null then
    return query
      select x.t, 'cycle', null::int, c.places[1], false, array_to_string(c.agents, E'\n'), null::text,
          null::text, null::bigint, null::text
        from (select distinct w.t from json_to_recordset(p_talk -> 'waits') as w(t int, must boolean)
          where w.must and w.t <> all(bad)) x
        cross join lateral cycles_of(t_run[x.t]) c;
    if p_talk -> 'withdraws' is not null then
      return query select 0, 'withdrawn', null::int, null::text, false, w.agent, w.sender, w.id,
          null::bigint, null::text
        from withdraw_questions(p_talk, bad) w;
    end if;
  end if;
end $$;
