-- What anybody may write: inbox rows, new runs, signals, the cancel flag. Another owner is told by
-- NOTIFY in the same statement; facts are read from the tables, a lost hint costs one scan.
-- `status`, which no index knows, is asked where the key is given (see 0001).
-- Functions only: takes no lock that anybody holds.

create function nudge_channel(owner text) returns text language sql stable
  as $$ select current_schema() || ':' || left(md5(owner), 16) $$;

-- Tell the owners (other than `me`) about keys. A payload holds up to 8000 bytes.
create function nudge_owners(me text, owners text[], kinds text[], agents text[], run_ids text[])
returns void language sql set search_path from current as $$
  select pg_notify(nudge_channel(c.owner), '[' || string_agg(c.item, ',') || ']') from (
    select i.owner, i.item,
        sum(octet_length(i.item) + 1) over (partition by i.owner order by i.item) / 6000 as chunk
      from (select distinct n.owner, json_build_array(n.kind, n.agent, n.run_id)::text as item
        from unnest(owners, kinds, agents, run_ids) n(owner, kind, agent, run_id)
        where n.owner is not null and n.owner is distinct from me) i) c
    group by c.owner, c.chunk
$$;

create function is_open(status text) returns boolean language sql immutable parallel safe
  return status in ('PENDING', 'RUNNING', 'SUSPENDED');

-- The run that holds the agent (it has started), else the oldest queued one.
create function holder_of(p_agent text) returns text language sql stable set search_path from current
as $$
  select r.run_id from runs r where r.agent = p_agent and r.ended_at is null
    order by (r.attempt > 0 or r.status <> 'PENDING') desc, r.arrival, r.run_id limit 1
$$;

-- Flag a run and its subtree. Repeated, each time with a younger snapshot, until no child is new: a
-- child is inserted under its parent's row lock, so one that is not seen yet reads the flag.
create function flag_tree(p_run text, p_reason text) returns text[]
language plpgsql set search_path from current as $$
declare tree text[] := '{}'; found text[];
begin
  loop
    with recursive t as (
      select r.run_id from runs r where r.run_id = p_run
      union select r.run_id from runs r join t on r.parent = t.run_id)
      select coalesce(array_agg(t.run_id), '{}') into found from t;
    exit when found <@ tree;
    tree := found;
    perform 1 from runs r where r.run_id = any(tree) order by r.run_id for no key update;
    update runs r set cancel_requested = p_reason
      where r.run_id = any(tree) and is_open(r.status) and r.cancel_requested is null;
  end loop;
  return tree;
end $$;

create function request_cancel(me text, p_run text, p_reason text)
returns table (run_id text, agent text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare tree text[] := flag_tree(p_run, p_reason);
begin
  perform nudge_owners(me, array_agg(s.owner), array_agg('cancel'::text), array_agg(r.agent),
      array_agg(r.run_id))
    from runs r join shards s on s.shard = r.shard where r.run_id = any(tree) and is_open(r.status);
  return query select r.run_id, r.agent from runs r
    where r.run_id = any(tree) and is_open(r.status) order by r.run_id;
end $$;

-- Many submits. A row per submit: the run its message belongs to, and whether this call made it so.
-- p_mode is one for the whole call; anything but 'queue' comes alone.
create function submit_runs(me text, p_mode text,
  r_run text[], r_agent text[], r_hash bigint[], r_priority int[], r_retry text[], r_parent text[],
  r_root text[], r_depth int[], r_deadline timestamptz[], r_version text[], r_trace text[],
  m_sender text[], m_id text[], m_body text[])
returns table (i int, run_id text, arrival bigint, fresh boolean, local boolean, busy boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare open_run text; made bigint[]; joined boolean := false;
begin
  perform lock_types(r_agent);
  if p_mode <> 'queue' then
    -- Two such submits to one agent take turns.
    perform pg_advisory_xact_lock(hashtext('submits of ' || current_schema()), hashtext(r_agent[1]));
    open_run := holder_of(r_agent[1]);
    if open_run is not null and not exists (select 1 from inbox n where n.agent = r_agent[1]
        and n.sender = m_sender[1] and n.message_id = m_id[1]) then
      if p_mode = 'reject' then
        return query select 1, open_run, null::bigint, false, false, true;
        return;
      elsif p_mode = 'interrupt' then
        perform request_cancel(me, open_run, 'interrupted by a newer submit');
      else
        joined := true;
      end if;
    end if;
  end if;
  with kept as (
    insert into inbox (agent, sender, message_id, shard, hash, state, run_id, body)
      select m.agent, m.sender, m.id, shard_of(m.agent, m.hash, y.mode, y.partitions), m.hash,
          case when joined then 'p' else 'b' end::"char", case when not joined then m.run end,
          m.body::json
        from unnest(r_run, r_agent, r_hash, m_sender, m_id, m_body)
          with ordinality m(run, agent, hash, sender, id, body, ord)
        left join types y on y.type = agent_type(m.agent)
        order by m.ord
      on conflict do nothing returning arrival)
    select coalesce(array_agg(k.arrival), '{}') into made from kept k;
  if not joined and cardinality(made) > 0 then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, parent, root, depth,
        deadline_at, version, trace, arrival)
      select n.run_id, n.agent, agent_tenant(n.agent), n.shard, n.hash, q.priority, q.retry::json,
          q.parent, q.root, q.depth, q.deadline, q.version, q.trace, n.arrival
        from unnest(r_run, r_agent, r_priority, r_retry, r_parent, r_root, r_depth, r_deadline,
            r_version, r_trace, m_sender, m_id)
          q(run, agent, priority, retry, parent, root, depth, deadline, version, trace, sender, id)
        join inbox n on n.agent = q.agent and n.sender = q.sender and n.message_id = q.id
        where n.run_id = q.run and n.arrival = any(made)
        order by n.run_id
      on conflict do nothing;
  end if;
  perform nudge_owners(me, array_agg(s.owner), array_agg(case when joined then 'mail' else 'run' end::text),
      array_agg(n.agent), array_agg(case when not joined then n.run_id end))
    from unnest(r_agent, m_sender, m_id) m(agent, sender, id)
    join inbox n on n.agent = m.agent and n.sender = m.sender and n.message_id = m.id
    join shards s on s.shard = n.shard and s.owner is distinct from me
    where n.arrival = any(made);
  return query
    select m.ord::int, coalesce(n.run_id, open_run, m.run), n.arrival, n.arrival = any(made),
        coalesce(s.owner = me, false), false
      from unnest(r_run, r_agent, m_sender, m_id) with ordinality m(run, agent, sender, id, ord)
      join inbox n on n.agent = m.agent and n.sender = m.sender and n.message_id = m.id
      left join shards s on s.shard = n.shard;
end $$;

-- Pending mail. A row per message: its arrival, and whether it was not known before.
create function deliver_mail(me text, m_agent text[], m_hash bigint[], m_sender text[], m_id text[],
  m_body text[])
returns table (i int, arrival bigint, fresh boolean, state text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made bigint[];
begin
  perform lock_types(m_agent);
  with kept as (
    insert into inbox (agent, sender, message_id, shard, hash, body)
      select m.agent, m.sender, m.id, shard_of(m.agent, m.hash, y.mode, y.partitions), m.hash,
          m.body::json
        from unnest(m_agent, m_hash, m_sender, m_id, m_body)
          with ordinality m(agent, hash, sender, id, body, ord)
        left join types y on y.type = agent_type(m.agent)
        order by m.ord
      on conflict do nothing returning arrival)
    select coalesce(array_agg(k.arrival), '{}') into made from kept k;
  perform nudge_owners(me, array_agg(s.owner), array_agg('mail'::text), array_agg(n.agent),
      array_agg(null::text))
    from unnest(m_agent, m_sender, m_id) m(agent, sender, id)
    join inbox n on n.agent = m.agent and n.sender = m.sender and n.message_id = m.id
    join shards s on s.shard = n.shard and s.owner is distinct from me
    where n.arrival = any(made);
  return query
    select m.ord::int, n.arrival, n.arrival = any(made), n.state::text
      from unnest(m_agent, m_sender, m_id) with ordinality m(agent, sender, id, ord)
      join inbox n on n.agent = m.agent and n.sender = m.sender and n.message_id = m.id;
end $$;

-- Buffer signals. The share lock on the run comes first: either a suspending turn sees the signal, or
-- the signal sees the run suspended (and its owner is told).
create function send_signals(me text, g_run text[], g_name text[], g_payload text[], g_sender text[],
  g_id text[])
returns table (i int, agent text, ended boolean, fresh boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made bigint[];
begin
  perform 1 from runs r where r.run_id = any(g_run) order by r.run_id for share;
  with kept as (
    insert into signals (run_id, name, payload, sender, message_id)
      select g.run, g.name, g.payload::json, g.sender, g.id
        from unnest(g_run, g_name, g_payload, g_sender, g_id)
          with ordinality g(run, name, payload, sender, id, ord)
        join runs r on r.run_id = g.run and is_open(r.status)
        order by g.ord
      on conflict do nothing returning n)
    select coalesce(array_agg(k.n), '{}') into made from kept k;
  perform nudge_owners(me, array_agg(h.owner), array_agg('signal'::text), array_agg(r.agent),
      array_agg(r.run_id))
    from unnest(g_run, g_sender, g_id) g(run, sender, id)
    join signals s on s.run_id = g.run and s.sender = g.sender and s.message_id = g.id
    join runs r on r.run_id = g.run
    join shards h on h.shard = r.shard and h.owner is distinct from me
    where s.n = any(made);
  return query
    select g.ord::int, r.agent, r.ended_at is not null, coalesce(s.n = any(made), false)
      from unnest(g_run, g_sender, g_id) with ordinality g(run, sender, id, ord)
      join runs r on r.run_id = g.run
      left join signals s on s.run_id = g.run and s.sender = g.sender and s.message_id = g.id;
end $$;

-- Give dead letters back as new messages; each of them once.
create function redrive_letters(me text, d_id bigint[], m_agent text[], m_hash bigint[],
  m_sender text[], m_id text[], m_body text[])
returns table (i int, arrival bigint) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare mine bigint[];
begin
  select coalesce(array_agg(l.id), '{}') into mine from (
    select d.id from dead_letters d where d.id = any(d_id) and d.redriven_at is null
      order by d.id for no key update) l;
  update dead_letters d set redriven_at = clock_timestamp() where d.id = any(mine);
  return query
    select x.ord::int, k.arrival
      from (select array_agg(d.ord order by d.ord) as ords,
          array_agg(d.agent order by d.ord) as agents, array_agg(d.hash order by d.ord) as hashes,
          array_agg(d.sender order by d.ord) as senders, array_agg(d.mid order by d.ord) as ids,
          array_agg(d.body order by d.ord) as bodies
        from unnest(d_id, m_agent, m_hash, m_sender, m_id, m_body)
          with ordinality d(id, agent, hash, sender, mid, body, ord)
        where d.id = any(mine)) a
      cross join lateral deliver_mail(me, a.agents, a.hashes, a.senders, a.ids, a.bodies) k
      cross join lateral (select a.ords[k.i] as ord) x
      where a.ords is not null and k.fresh;
end $$;
