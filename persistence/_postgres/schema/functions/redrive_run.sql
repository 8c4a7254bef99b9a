-- Queue a new run with the messages of a dead run; once, and not if some of its dead letters were redriven
-- individually. `status` is the dead run's status if nothing was done; it is GIVEN BACK if dead letters were
-- redriven: `given` are those, `rest` the others. Dead letters are locked, so redriving a dead letter and its run at
-- the same time happens in one order.
create or replace function redrive_run(me text, p_dead text, p_new text, p_supervision text,
  p_deadline interval, m_sender text[], m_id text[], m_body text[])
returns table (status text, fresh boolean, arrival bigint, local boolean, given bigint[], rest bigint[])
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare dead runs; home text; drawn bigint; mine boolean;
begin
  select * into dead from runs r where r.run_id = p_dead;
  if not found then return; end if;
  perform lock_types(array[dead.agent]);
  select * into dead from runs r where r.run_id = p_dead for no key update;
  select s.owner is not distinct from me, x.shard into mine, home
    from (select shard_of(dead.agent, dead.hash, y.mode, y.partitions) as shard from (select 1) one
      left join types y on y.type = agent_type(dead.agent)) x
    left join shards s on s.shard = x.shard;
  if dead.status <> 'FAILED' or exists (select 1 from runs r where r.run_id = p_new) then
    return query select dead.status, false, null::bigint, mine, null::bigint[], null::bigint[];
    return;
  end if;
  select array_agg(l.id) filter (where l.redriven_at is not null),
      array_agg(l.id) filter (where l.redriven_at is null) into given, rest from (
    select d.id, d.redriven_at from dead_letters d
      where d.run_id = p_dead and (d.sender, d.message_id) in (
        select e.payload -> 'message' ->> 'sender', e.payload -> 'message' ->> 'id' from event_log e
          where e.run_id = p_dead and e.kind = 'msg.received' and e.position like 'in.%')
      order by d.id for no key update) l;
  if given is not null then
    return query select 'GIVEN BACK', false, null::bigint, mine, given, rest;
    return;
  end if;
  with kept as (
    insert into inbox (agent, sender, message_id, shard, hash, state, run_id, body)
      select dead.agent, m.sender, m.id, home, dead.hash, 'b', p_new, m.body::json
        from unnest(m_sender, m_id, m_body) with ordinality m(sender, id, body, ord) order by m.ord
      on conflict do nothing returning arrival)
    select coalesce(min(k.arrival), next_arrival()) into drawn from kept k;
  insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, root, depth,
      deadline_at, version, trace, supervision, arrival)
    values (p_new, dead.agent, dead.tenant, home, dead.hash, dead.priority, dead.retry_policy, p_new,
      0, clock_timestamp() + p_deadline, dead.version, dead.trace, p_supervision::json, drawn);
  -- Mark the dead letters of the run's first messages as redriven, so that they are not redriven a second time. The
  -- new run does not get messages that the dead run received later; their dead letters stay.
  update dead_letters d set redriven_at = clock_timestamp() where d.id = any(rest);
  perform nudge_owners(me, array[s.owner], array['run'], array[dead.agent], array[p_new])
    from shards s where s.shard = home;
  return query select dead.status, true, drawn, mine, null::bigint[], null::bigint[];
end $$;
