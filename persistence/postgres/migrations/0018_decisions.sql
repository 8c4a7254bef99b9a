-- Decisions of operators: each of them counts once.
-- Functions take another's place; the index is built under a lock that keeps writers of `dead_letters`
-- waiting, a second for a million. Hosts of the release before keep working.

-- What a decision of this name is about now: the intent of the effect in doubt at its position, or the
-- last entry of a run that is parked for another reason or waits for its next attempt. Null: nothing.
create function to_decide(p_run text, p_name text) returns int
language plpgsql stable set search_path from current as $$
declare r runs;
begin
  select * into r from runs x where x.run_id = p_run;
  if p_name = '~retry' then
    return (select max(e.seq) from event_log e where e.run_id = p_run
      and (r.parked <> 'in_doubt' or r.status = 'PENDING'));
  elsif r.parked = 'in_doubt' and starts_with(p_name, '~resolve:') then
    return (select e.seq from (
      select * from event_log l where l.run_id = p_run and l.seq >= r.log_from
          and l.position = substr(p_name, 10)
        order by l.seq desc limit 1) e
      where e.kind in ('effect.intent', 'tool.called') and e.payload ->> 'mode' = 'at_most_once');
  end if;
  return null;
end $$;

-- As in 0003, and: a decision (its name begins with ~) is kept with '~' as its sender and NAME@SEQ as its
-- id, while its run is at the entry SEQ. The key makes it the only one. Who gives it another id, as hosts
-- of the release before do, decides what the run is at now. `same`: this very decision is there.
drop function send_signals;
create function send_signals(me text, g_run text[], g_name text[], g_payload text[], g_sender text[],
  g_id text[])
returns table (i int, agent text, ended boolean, fresh boolean, same boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made bigint[]; g_about int[];
begin
  perform 1 from runs r where r.run_id = any(g_run) order by r.run_id for share;
  if '~' = any(select left(g.name, 1) from unnest(g_name) g(name)) then
    select array_agg(case when left(g.name, 1) = '~' then to_decide(g.run, g.name) end order by g.ord),
        array_agg(case when left(g.name, 1) = '~' then '~' else g.sender end order by g.ord),
        array_agg(case when left(g.name, 1) <> '~' or starts_with(g.id, g.name || '@') then g.id
          else g.name || '@' || coalesce(to_decide(g.run, g.name)::text, '') end order by g.ord)
      into g_about, g_sender, g_id
      from unnest(g_run, g_name, g_sender, g_id) with ordinality g(run, name, sender, id, ord);
  end if;
  with kept as (
    insert into signals (run_id, name, payload, sender, message_id)
      select g.run, g.name, g.payload::json, g.sender, g.id
        from unnest(g_run, g_name, g_payload, g_sender, g_id, g_about)
          with ordinality g(run, name, payload, sender, id, about, ord)
        join runs r on r.run_id = g.run and is_open(r.status)
        where left(g.name, 1) <> '~' or g.id = g.name || '@' || g.about
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
    select g.ord::int, r.agent, r.ended_at is not null, coalesce(s.n = any(made), false),
        left(g.name, 1) = '~' and coalesce(s.payload::text = g.payload, false)
      from unnest(g_run, g_name, g_payload, g_sender, g_id)
        with ordinality g(run, name, payload, sender, id, ord)
      join runs r on r.run_id = g.run
      left join signals s on s.run_id = g.run and s.sender = g.sender and s.message_id = g.id;
end $$;

-- Decisions that wait for their runs, of the release before: the first one since its doubt began is about
-- that, all others were for doubts that are over. Takes locks on these rows alone.
update signals s set sender = '~', message_id = d.name || '@' || d.about
  from (
    select distinct on (w.run_id, w.name) w.run_id, w.name, w.n, w.about
      from (select g.*, to_decide(g.run_id, g.name) as about from signals g
        where not g.consumed and starts_with(g.name, '~')) w
      join event_log e on e.run_id = w.run_id and e.seq = w.about and e.ts <= w.created_at
      order by w.run_id, w.name, w.n) d
  where s.run_id = d.run_id and s.n = d.n;

-- The letters of a run, also those given back: they are looked at before it is redriven.
create index dead_letters_of_run on dead_letters (run_id) where run_id is not null;

-- As in 0003. Types are locked before letters, as where a run is redriven.
create or replace function redrive_letters(me text, d_id bigint[], m_agent text[], m_hash bigint[],
  m_sender text[], m_id text[], m_body text[])
returns table (i int, arrival bigint) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare mine bigint[];
begin
  perform lock_types(m_agent);
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

-- As in 0008, and: not while letters of it were given back by themselves. Then `status` is GIVEN BACK, which
-- hosts of the release before take for one that cannot be redriven, `given` are those letters, `rest` the
-- others. Letters are locked, so that of a letter and its run at once one is first.
drop function redrive_run;
create function redrive_run(me text, p_dead text, p_new text, p_supervision text,
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
  -- The letters of what it began with went with it: nobody gives them back a second time. What it received
  -- on its way the new run does not get; that stays a letter.
  update dead_letters d set redriven_at = clock_timestamp() where d.id = any(rest);
  perform nudge_owners(me, array[s.owner], array['run'], array[dead.agent], array[p_new])
    from shards s where s.shard = home;
  return query select dead.status, true, drawn, mine, null::bigint[], null::bigint[];
end $$;

-- As in 0008; a person's decision is kept only while the run waits for it.
create or replace function give_answer(me text, p_run text, p_key text, p_status text, p_result text,
  p_error text, p_by text, p_last int)
returns table (agent text, fresh boolean, same boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made boolean;
begin
  perform 1 from runs r where r.run_id = p_run for no key update;
  insert into completions (parent, child, status, result, error, run, last_seq)
    select r.run_id, p_key, p_status, p_result::json, p_error::json, p_by, p_last
      from runs r where r.run_id = p_run
        and (p_status not in ('approved', 'denied')
          or exists (select 1 from waits w where w.run_id = p_run and w.key = p_key))
    on conflict do nothing;
  made := found;
  if made then
    perform nudge_owners(me, array[s.owner], array['signal'], array[r.agent], array[r.run_id])
      from runs r join shards s on s.shard = r.shard where r.run_id = p_run and is_open(r.status);
  end if;
  return query
    select r.agent, made, coalesce(c.status = p_status and c.result::text is not distinct from p_result
        and c.error::text is not distinct from p_error and c.run is not distinct from p_by, false)
      from runs r left join completions c on c.parent = r.run_id and c.child = p_key
      where r.run_id = p_run;
end $$;
