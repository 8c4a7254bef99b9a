-- Write submits. Returns a row per submit: the run its message belongs to, and whether this call created it; a
-- message whose id was moved to `message_ids` has the run that was recorded with the id. p_mode applies to the whole
-- call; a mode other than 'queue' takes one submit. `r_project`: of runs that are facts of sessions. A submit to a
-- session that is being deleted is refused: busy, without a run. `r_owner`: see `unseen_sessions`, whose submits are
-- refused also if their ids are known: not busy, without a run.
create or replace function submit_runs(me text, p_mode text,
  r_run text[], r_agent text[], r_hash bigint[], r_priority int[], r_retry text[], r_parent text[],
  r_root text[], r_depth int[], r_deadline timestamptz[], r_version text[], r_trace text[],
  r_supervision text[],
  m_sender text[], m_id text[], m_body text[], r_project text[] default null, r_owner text[] default null)
returns table (i int, run_id text, arrival bigint, fresh boolean, local boolean, busy boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare open_run text; made bigint[]; joined boolean := false; refused bigint[] := '{}'; unseen bigint[] := '{}';
begin
  perform lock_types(r_agent);
  if r_owner is not null then
    unseen := unseen_sessions(r_agent, r_owner);
    if cardinality(unseen) > 0 then  -- they are not locked: that would create their rows
      r_project := array(select case when u.i <> all(unseen) then u.project end
        from unnest(r_project) with ordinality u(project, i) order by u.i);
    end if;
  end if;
  if p_mode <> 'queue' and unseen = '{}' then
    -- Two such submits to one agent are executed one after the other.
    perform pg_advisory_xact_lock(hashtext('submits of ' || current_schema()), hashtext(r_agent[1]));
    open_run := holder_of(r_agent[1]);
    if open_run is not null and not exists (select 1 from inbox n where n.agent = r_agent[1]
        and n.sender = m_sender[1] and n.message_id = m_id[1])
        and not exists (select 1 from message_ids k
          where k.key = message_key(r_agent[1], m_sender[1], m_id[1])) then
      if r_project is not null and refused_submits(false, r_agent, r_project, m_sender, m_id) <> '{}' then
        return query select 1, null::text, null::bigint, false, false, true;
        return;
      end if;
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
  if r_project is not null and not joined then
    refused := refused_submits(true, r_agent, r_project, m_sender, m_id, r_owner);
  end if;
  with kept as (
    insert into inbox (agent, sender, message_id, shard, hash, state, run_id, body)
      select m.agent, m.sender, m.id, shard_of(m.agent, m.hash, y.mode, y.partitions), m.hash,
          case when joined then 'p' else 'b' end::"char", case when not joined then m.run end,
          m.body::json
        from unnest(r_run, r_agent, r_hash, m_sender, m_id, m_body)
          with ordinality m(run, agent, hash, sender, id, body, ord)
        left join types y on y.type = agent_type(m.agent)
        where not exists (select 1 from message_ids k
            where k.key = message_key(m.agent, m.sender, m.id) offset 0)
          and not exists (select 1 from inbox i
            where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0)
          and m.ord <> all(refused) and m.ord <> all(unseen)
        order by m.ord
      on conflict do nothing returning arrival)
    select coalesce(array_agg(k.arrival), '{}') into made from kept k;
  if not joined and cardinality(made) > 0 then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, parent, root, depth,
        deadline_at, version, trace, supervision, arrival)
      select n.run_id, n.agent, agent_tenant(n.agent), n.shard, n.hash, q.priority, q.retry::json,
          q.parent, q.root, q.depth, q.deadline, q.version, q.trace,
          q.supervision::json, n.arrival
        from unnest(r_run, r_agent, r_priority, r_retry, r_parent, r_root, r_depth, r_deadline,
            r_version, r_trace, r_supervision, m_sender, m_id)
          q(run, agent, priority, retry, parent, root, depth, deadline, version, trace, supervision,
            sender, id)
        cross join lateral (select * from inbox i
          where i.agent = q.agent and i.sender = q.sender and i.message_id = q.id offset 0) n
        where n.run_id = q.run and n.arrival = any(made)
        order by n.run_id
      on conflict do nothing;
    if r_project is not null then
      perform queue_facts(r_run, r_agent, r_project, made);
    end if;
  end if;
  perform nudge_owners(me, array_agg(s.owner), array_agg(case when joined then 'mail' else 'run' end::text),
      array_agg(n.agent), array_agg(case when not joined then n.run_id end))
    from unnest(r_agent, m_sender, m_id) m(agent, sender, id)
    cross join lateral (select * from inbox i
      where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0) n
    join shards s on s.shard = n.shard and s.owner is distinct from me
    where n.arrival = any(made);
  return query
    select m.ord::int,
        case when m.ord = any(refused) or m.ord = any(unseen) then null
          when n.agent is not null then coalesce(n.run_id, open_run, m.run)
          else coalesce((select k.run_id from message_ids k
            where k.key = message_key(m.agent, m.sender, m.id)), m.run) end,
        n.arrival, coalesce(n.arrival = any(made), false), coalesce(s.owner = me, false), m.ord = any(refused)
      from unnest(r_run, r_agent, m_sender, m_id) with ordinality m(run, agent, sender, id, ord)
      left join lateral (select * from inbox i
        where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0) n on true
      left join shards s on s.shard = n.shard;
end $$;
