-- What runs have to do with each other: answers, open waits, children and what a tree may spend.
-- Lock order: types (advisory), shards, runs, budgets; each by key. Answers are written by whoever's
-- own fence holds, into any shard; the waiter's run is locked too, so that either a suspending turn sees
-- its answer or the answer sees the run suspended.
-- New columns are added without a rewrite; `completions` of ended runs are relabelled row by row.

alter table runs
  add column supervision json,
  add column swept boolean not null default false;

-- `parent` waits, `child` is what for: the id of an ask's message, of a run, of an approval. The key is
-- what makes the ends of an ask exclusive. `run` answered.
alter table completions
  add column run text collate "C",
  add column last_seq int not null default -1,
  add column at timestamptz;
alter table completions alter column at set default clock_timestamp();
update completions set status = lower(status), run = child;

-- Open waits; `changed_at` is when it last became one without which its run cannot go on.
create table waits (
  run_id text collate "C" not null,
  position text collate "C" not null,
  key text collate "C" not null,
  kind text not null,
  agent text collate "C",
  target_run text collate "C",
  must boolean not null,
  request json,
  expires_at timestamptz,
  since timestamptz not null default present(),
  changed_at timestamptz not null default present(),
  primary key (run_id, position, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index waits_of_target on waits (target_run) where target_run is not null;
create index waits_newest on waits (changed_at) where must;
create index waits_oldest on waits (since);

-- A tree's account, made from its root's terms at the first spawn or spend. `open`: spawned, not ended.
create table budgets (
  root text collate "C" primary key,
  max_runs int not null,
  max_concurrent int,
  max_tokens bigint,
  max_cost_usd text,
  max_turns int,
  runs int not null default 0,
  open int not null default 0,
  tokens bigint not null default 0,
  cost_usd double precision not null default 0,
  turns int not null default 0
) with (fillfactor = 50);

-- A place in the queue for a run that has no message.
create function next_arrival() returns bigint language plpgsql volatile set search_path from current
as $$
begin
  return nextval(pg_get_serial_sequence('inbox', 'arrival'));
end $$;

-- What every turn may call is plpgsql: its plans are kept, those of an sql function are made in each call.

-- Runs that the ends of these runs change something for: parents, those who joined or asked them, and
-- children that are asked to stop or get another parent.
create function concerned_by_ends(p_ended text[], t_run text[], t_orphans text[], b_agent text[],
  b_sender text[], b_id text[])
returns text[] language plpgsql stable set search_path from current as $$
begin
  return (
    with recursive below as (
      select c.run_id, t.orphans <> 'permanent' as deeper
        from unnest(t_run, t_orphans) t(run, orphans) join runs c on c.parent = t.run
        where t.orphans is not null and t.run = any(p_ended) and c.ended_at is null
      union
      select c.run_id, true from below b join runs c on c.parent = b.run_id where b.deeper
    )
    select coalesce(array_agg(distinct x.run_id), '{}') from (
      select r.parent as run_id from runs r where r.run_id = any(p_ended) and r.parent is not null
      union all
      select w.run_id from waits w where w.target_run = any(p_ended)
      union all
      select i.body ->> 'reply_to' from inbox i
        where i.run_id = any(p_ended) and i.state = 'b' and strpos(i.body::text, '"reply_to"') > 0
      union all
      select i.body ->> 'reply_to' from unnest(b_agent, b_sender, b_id) b(agent, sender, id)
        join inbox i on i.agent = b.agent and i.sender = b.sender and i.message_id = b.id
        where strpos(i.body::text, '"reply_to"') > 0
      union all
      select b.run_id from below b) x
    where x.run_id is not null);
end $$;

-- Count what turns spawn and spend, in their order. Returns what there is no place for; such a turn
-- counts nothing. Of several spawns the first ones that fit are not named.
create function spend_budgets(p_talk json, t_run text[], p_bad int[], p_ended text[])
returns table (t int, place text, reason text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare x record; a budgets; roots text[]; n int; places int;
begin
  if p_talk -> 'spawns' is null and p_talk -> 'spends' is null then return; end if;
  select array_agg(distinct coalesce(r.root, t_run[m.t])) into roots from (
    select s.t from json_to_recordset(p_talk -> 'spawns') as s(t int)
    union select d.t from json_to_recordset(p_talk -> 'spends') as d(t int)) m
    left join runs r on r.run_id = t_run[m.t] where m.t <> all(p_bad);
  if roots is null then return; end if;
  insert into budgets (root, max_runs, max_concurrent, max_tokens, max_cost_usd, max_turns)
    select u.root, coalesce((r.supervision -> 'spawn_budget' ->> 'max_runs')::int, 50),
        (r.supervision -> 'spawn_budget' ->> 'max_concurrent')::int,
        (r.supervision -> 'execution_budget' ->> 'max_tokens')::bigint,
        r.supervision -> 'execution_budget' ->> 'max_cost_usd',
        (r.supervision -> 'execution_budget' ->> 'max_turns')::int
      from unnest(roots) u(root) left join runs r on r.run_id = u.root
      order by u.root on conflict do nothing;
  perform 1 from budgets b
    where b.root = any(roots) or b.root in (
      select r.root from runs r where r.run_id = any(p_ended) and r.parent is not null)
    order by b.root for no key update;
  for x in
    select m.t, coalesce(r.root, t_run[m.t]) as root, coalesce(m.spawns, '{}') as spawns,
        m.tokens, m.cost_usd, m.turns, m.place
      from (
        select coalesce(s.t, d.t) as t, s.spawns, d.tokens, d.cost_usd, d.turns, d.place
          from (select s.t, array_agg(s.place order by s.ord) as spawns
            from (select s.*, row_number() over () as ord
              from json_to_recordset(p_talk -> 'spawns') as s(t int, run text, place text)) s
            where not exists (select 1 from runs r where r.run_id = s.run) group by s.t) s
          full join json_to_recordset(p_talk -> 'spends')
            as d(t int, tokens bigint, cost_usd double precision, turns int, place text)
            on d.t = s.t) m
      left join runs r on r.run_id = t_run[m.t]
      where m.t <> all(p_bad) order by m.t
  loop
    select * into a from budgets b where b.root = x.root;
    n := cardinality(x.spawns);
    places := greatest(least(a.max_runs - a.runs, a.max_concurrent - a.open), 0);
    t := x.t;
    if n > places then
      reason := case when a.max_concurrent - a.open < a.max_runs - a.runs
        then 'max_concurrent ' || a.max_concurrent else 'max_runs ' || a.max_runs end;
      for i in places + 1 .. n loop
        place := x.spawns[i];
        return next;
      end loop;
      continue;
    end if;
    reason := case when x.turns is null or x.turns = 0 then null
      when a.turns + x.turns > a.max_turns then 'max_turns ' || a.max_turns
      when a.tokens >= a.max_tokens then 'max_tokens ' || a.max_tokens
      when a.cost_usd >= a.max_cost_usd::double precision then 'max_cost_usd ' || a.max_cost_usd end;
    if reason is not null then
      place := x.place;
      return next;
      continue;
    end if;
    update budgets b set runs = b.runs + n, open = b.open + n,
        tokens = b.tokens + coalesce(x.tokens, 0), cost_usd = b.cost_usd + coalesce(x.cost_usd, 0),
        turns = b.turns + coalesce(x.turns, 0)
      where b.root = x.root;
  end loop;
end $$;

create function give_places_back(p_ended text[]) returns void
language plpgsql set search_path from current as $$
declare back text[]; given int[];
begin
  select array_agg(x.root), array_agg(x.n) into back, given from (
    select r.root, count(*)::int as n from runs r
      where r.run_id = any(p_ended) and r.parent is not null group by r.root) x;
  if back is not null then
    perform 1 from budgets b where b.root = any(back) order by b.root for no key update;
    update budgets b set open = b.open - x.n from unnest(back, given) x(root, n)
      where b.root = x.root;
  end if;
end $$;

-- The first messages of runs that were just spawned, bound to them, in the place of their runs.
create function boot_children(p_talk json, p_bad int[]) returns void
language plpgsql set search_path from current as $$
begin
  insert into inbox (agent, sender, message_id, arrival, shard, hash, state, run_id, body)
    overriding system value
    select r.agent, s.sender, s.id, r.arrival, r.shard, r.hash, 'b', r.run_id, s.body::json
      from json_to_recordset(p_talk -> 'spawns')
        as s(t int, run text, sender text, id text, body text)
      join runs r on r.run_id = s.run
      where s.t <> all(p_bad) and s.body is not null order by r.arrival
    on conflict do nothing;
end $$;

-- Replies of runs to those who asked their agents. Returns who has one now.
create function keep_replies(p_talk json, t_run text[], p_bad int[])
returns table (t int, waiter text) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    with kept as (
      insert into completions (parent, child, status, result, error, run, last_seq)
        select w.run_id, a.key, a.status, a.result::json, a.error::json, coalesce(a.by, r.run_id),
            case when a.last >= 0 then a.last
              else (select max(e.seq) from event_log e where e.run_id = r.run_id) end
          from json_to_recordset(p_talk -> 'answers') as a(t int, run text, key text, status text,
            result text, error text, by text, last int)
          join runs r on r.run_id = t_run[a.t]
          join runs w on w.run_id = a.run and w.tenant = r.tenant and not w.swept
          where a.t <> all(p_bad) and exists (select 1 from inbox i
            where i.agent = r.agent and i.sender = 'agent:' || w.agent and i.message_id = a.key)
          order by w.run_id, a.key
        on conflict do nothing returning parent, run)
    select array_position(t_run, k.run), k.parent from kept k;
end $$;

-- How a run ended, as the answer to those who wait for it.
create function end_error(p_status text, p_error json, p_reason text) returns json
  language sql immutable parallel safe
  return case p_status when 'FAILED' then p_error
    when 'CANCELLED' then json_build_object('message',
      coalesce(p_reason, p_error ->> 'message', '')) end;

-- Put these turns' waits in place of those before. A run waited for that has ended answers at once, also
-- again when its answer was taken: a second join of it is no mistake. Returns who has an answer now.
create function keep_waits(p_talk json, t_run text[], p_bad int[])
returns table (t int, waiter text) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  delete from waits w using json_array_elements_text(p_talk -> 'waiting') g(t)
    where g.t::int <> all(p_bad) and w.run_id = t_run[g.t::int]
      and (w.run_id, w.position, w.key) not in (
        select t_run[n.t], n.position, n.key
          from json_to_recordset(p_talk -> 'waits') as n(t int, position text, key text));
  if p_talk -> 'waits' is null then return; end if;
  insert into waits (run_id, position, key, kind, agent, target_run, must, request, expires_at)
    select t_run[n.t], n.position, n.key, n.kind, n.agent, n.target, n.must, n.request::json,
        n.expires_at
      from json_to_recordset(p_talk -> 'waits') as n(t int, position text, key text, kind text,
        agent text, target text, must boolean, request text, expires_at timestamptz)
      where n.t <> all(p_bad)
    on conflict (run_id, position, key) do update set kind = excluded.kind, agent = excluded.agent,
      target_run = excluded.target_run, must = excluded.must, request = excluded.request,
      expires_at = excluded.expires_at,
      changed_at = case when waits.must then waits.changed_at else excluded.changed_at end;
  return query
    with kept as (
      insert into completions (parent, child, status, result, error, run, last_seq)
        select distinct on (w.run_id, n.key) w.run_id, n.key, lower(r.status),
            case r.status when 'COMPLETED' then r.result end,
            end_error(r.status, r.error, r.cancel_requested), r.run_id,
            coalesce((select max(e.seq) from event_log e where e.run_id = r.run_id), -1)
          from json_to_recordset(p_talk -> 'waits') as n(t int, key text, target text)
          join runs r on r.run_id = n.target and r.ended_at is not null
          join runs w on w.run_id = t_run[n.t] and w.tenant = r.tenant
          where n.t <> all(p_bad) order by w.run_id, n.key
        on conflict (parent, child) do update set consumed = false where completions.consumed
        returning parent)
    select distinct array_position(t_run, k.parent), k.parent from kept k;
end $$;

-- What turns say to others: answers, waits, follows, posts. Returns whom to tell.
create function talk(p_talk json, t_run text[], t_agent text[], p_bad int[], p_brokered boolean)
returns table (t int, kind text, agent text, name text, owner text, place bigint)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare first int;
begin
  if p_talk -> 'spawns' is not null then
    return query select x.t, 'run', r.agent, r.run_id, s.owner, r.arrival
      from json_to_recordset(p_talk -> 'spawns') as x(t int, run text)
      join runs r on r.run_id = x.run left join shards s on s.shard = r.shard
      where x.t <> all(p_bad) order by r.arrival;
  end if;
  if p_talk -> 'answers' is not null then
    return query select x.t, 'signal', r.agent, r.run_id, s.owner, null::bigint
      from keep_replies(p_talk, t_run, p_bad) x
      join runs r on r.run_id = x.waiter and is_open(r.status)
      left join shards s on s.shard = r.shard;
  end if;
  if p_talk -> 'waiting' is not null then
    return query select x.t, 'signal', r.agent, r.run_id, s.owner, null::bigint
      from keep_waits(p_talk, t_run, p_bad) x
      join runs r on r.run_id = x.waiter and is_open(r.status)
      left join shards s on s.shard = r.shard;
  end if;
  if p_talk -> 'follows' is not null then
    perform change_follows(array_agg(t_agent[f.t]), array_agg(f.hash), array_agg(f.topic),
        array_agg(f.mode))
      from json_to_recordset(p_talk -> 'follows') as f(t int, hash bigint, topic text, mode text)
      where f.t <> all(p_bad) having count(*) > 0;
  end if;
  if p_talk -> 'posts' is not null then
    return query select a.first, 'fanout', null::text, x.shard, x.owner, null::bigint
      from (select min(p.t) as first, array_agg(p.topic) as topics, array_agg(p.hash) as hashes,
          array_agg(p.sender) as senders, array_agg(p.id) as ids, array_agg(p.body) as bodies
        from json_to_recordset(p_talk -> 'posts')
          as p(t int, topic text, hash bigint, sender text, id text, body text)
        where p.t <> all(p_bad) having count(*) > 0) a
      cross join lateral publish_posts(a.topics, a.hashes, a.senders, a.ids, a.bodies, p_brokered) x;
  end if;
end $$;

-- Answer everybody who waits for the end of these runs, and their parents; what the messages bound to
-- them ask too, as long as their bodies are there. Returns who has an answer now, from whom.
create function tell_ends(p_ended text[]) returns table (by text, waiter text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    with told as (
      select r.run_id as by, r.parent as waiter, r.run_id as key from runs r
        where r.run_id = any(p_ended) and r.parent is not null
      union
      select w.target_run, w.run_id, w.key from waits w where w.target_run = any(p_ended)
      union
      select i.run_id, a.run_id, i.message_id
        from (select i.run_id, i.message_id, i.sender, i.body ->> 'reply_to' as asker from inbox i
          where i.run_id = any(p_ended) and i.state = 'b' and strpos(i.body::text, '"reply_to"') > 0
          offset 0) i
        join runs a on a.run_id = i.asker and i.sender = 'agent:' || a.agent)
    insert into completions (parent, child, status, result, error, run, last_seq)
      select w.run_id, t.key, lower(r.status), case r.status when 'COMPLETED' then r.result end,
          end_error(r.status, r.error, r.cancel_requested), r.run_id,
          coalesce((select max(e.seq) from event_log e where e.run_id = r.run_id), -1)
        from told t
        join runs r on r.run_id = t.by
        join runs w on w.run_id = t.waiter and w.tenant = r.tenant and not w.swept
        order by w.run_id, t.key
      on conflict do nothing returning run, parent;
end $$;

-- What becomes of the open children of runs that have ended. Returns who is asked to stop, from whom.
create function resolve_orphans(p_ended text[], t_run text[], t_orphans text[])
returns table (by text, orphan text) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    with recursive below as (
      select t.run as by, c.run_id
        from unnest(t_run, t_orphans) t(run, orphans) join runs c on c.parent = t.run
        where t.orphans <> 'permanent' and t.run = any(p_ended) and c.ended_at is null
      union
      select b.by, c.run_id from below b join runs c on c.parent = b.run_id
    ), flagged as (
      update runs r set cancel_requested = 'parent run ' || b.by || ' has ended'
        from below b where r.run_id = b.run_id and r.ended_at is null and r.cancel_requested is null
    ), adopted as (
      update runs c set parent = r.root
        from unnest(t_run, t_orphans) t(run, orphans)
        join runs r on r.run_id = t.run and r.root <> r.run_id
        where t.orphans = 'permanent' and t.run = any(p_ended) and c.parent = t.run
          and c.ended_at is null and exists (select 1 from runs o where o.run_id = r.root)
    )
    select b.by, b.run_id from below b join runs r on r.run_id = b.run_id where r.ended_at is null;
end $$;

-- --- circles of waits ---------------------------------------------------------------------------------

-- The run that holds an agent: it has started and not ended.
create function started_on(p_agent text) returns text language plpgsql stable set search_path from current as $$
begin
  return (
    select r.run_id from runs r
      where r.agent = p_agent and r.ended_at is null and (r.attempt > 0 or r.status <> 'PENDING')
      order by r.arrival, r.run_id limit 1);
end $$;

-- The runs that a run depends on, with the waits that say so; none while something lets it go on.
create function waits_for(p_run text) returns table (place text, run_id text, agent text)
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  return query
    select w.position, a.run_id, a.agent
      from runs r
      join waits w on w.run_id = r.run_id and w.must
      left join runs t on t.run_id = w.target_run
      join runs a on a.run_id = case when t.run_id is null then started_on(w.agent)
        when t.ended_at is not null then null
        when t.attempt > 0 or t.status <> 'PENDING' then t.run_id
        else started_on(t.agent) end
      where r.run_id = p_run and r.status in ('RUNNING', 'SUSPENDED') and r.parked is null
        and not coalesce((r.wake ->> 'message')::boolean, false)
        and not exists (select 1 from waits v
          join completions c on c.parent = v.run_id and c.child = v.key
          where v.run_id = r.run_id and (not c.consumed or v.key = w.key))
      order by w.position;
end $$;

-- The ways from a run's waits back to itself, each as the runs on it and the position of the wait in
-- each of them. At most 1,000 runs are looked at from one wait.
create function cycles_of(p_run text) returns table (places text[], run_ids text[], agents text[])
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
declare
  x record; y record; n int; m int;
  run text[]; came int[]; place text[]; who text[]; me text;
begin
  for x in select * from waits_for(p_run) loop
    run := array[x.run_id]; came := array[0]; place := array[x.place]; who := array[x.agent];
    n := 1;
    while n <= least(cardinality(run), 1000) loop
      if run[n] = p_run then
        me := who[n];
        places := '{}'; run_ids := '{}'; agents := '{}';
        m := n;
        while m > 0 loop
          places := place[m] || places;
          run_ids := case when came[m] = 0 then p_run else run[came[m]] end || run_ids;
          agents := case when came[m] = 0 then me else who[came[m]] end || agents;
          m := came[m];
        end loop;
        return next;
        exit;
      end if;
      for y in select * from waits_for(run[n]) loop
        if y.run_id <> all(run) then
          run := run || y.run_id; came := came || n; place := place || y.place;
          who := who || y.agent;
        end if;
      end loop;
      n := n + 1;
    end loop;
  end loop;
end $$;

-- Circles that have a wait which is younger, seen from the run with the greatest id when that is in
-- these shards.
create function young_cycles(p_shards text[], p_younger interval)
returns table (places text[], run_ids text[], agents text[])
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  return query
    select c.places, c.run_ids, c.agents
      from (select distinct w.run_id from waits w
        where w.must and w.changed_at > present() - p_younger) y
      cross join lateral cycles_of(y.run_id) c
      join runs g on g.run_id = (select max(u.run_id) from unnest(c.run_ids) u(run_id))
      where g.shard = any(p_shards);
end $$;

-- --- from outside ---------------------------------------------------------------------------------------

-- Keep what ends a wait of a run. No row: there is no such run. `same`: this very answer is there.
create function give_answer(me text, p_run text, p_key text, p_status text, p_result text,
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

-- A new run with the messages of a dead one; once. `status` is the dead one's when nothing was done.
create function redrive_run(me text, p_dead text, p_new text, p_supervision text,
  p_deadline interval, m_sender text[], m_id text[], m_body text[])
returns table (status text, fresh boolean, arrival bigint, local boolean)
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
    return query select dead.status, false, null::bigint, mine;
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
  -- Its letters went with it: nobody gives them back a second time.
  update dead_letters d set redriven_at = clock_timestamp()
    where d.run_id = p_dead and d.redriven_at is null;
  perform nudge_owners(me, array[s.owner], array['run'], array[dead.agent], array[p_new])
    from shards s where s.shard = home;
  return query select dead.status, true, drawn, mine;
end $$;

-- Many submits. A row per submit: the run its message belongs to, and whether this call made it so.
-- p_mode is one for the whole call; anything but 'queue' comes alone.
drop function submit_runs;
create function submit_runs(me text, p_mode text,
  r_run text[], r_agent text[], r_hash bigint[], r_priority int[], r_retry text[], r_parent text[],
  r_root text[], r_depth int[], r_deadline timestamptz[], r_version text[], r_trace text[],
  r_supervision text[],
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
        deadline_at, version, trace, supervision, arrival)
      select n.run_id, n.agent, agent_tenant(n.agent), n.shard, n.hash, q.priority, q.retry::json,
          q.parent, q.root, q.depth, q.deadline, q.version, q.trace,
          q.supervision::json, n.arrival
        from unnest(r_run, r_agent, r_priority, r_retry, r_parent, r_root, r_depth, r_deadline,
            r_version, r_trace, r_supervision, m_sender, m_id)
          q(run, agent, priority, retry, parent, root, depth, deadline, version, trace, supervision,
            sender, id)
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

-- Whole turns. Returned rows: refused turns (lease, unknown, ended, conflict, missing; over: a position
-- in detail, the limit as message_id), notes about committed ones (note: cancel reason in detail, wake),
-- messages that became inbox rows (routed), whom to tell (nudge: kind in detail, run or shard as
-- message_id), circles of waits (cycle: position in detail, agents by line), and with a broker outbox
-- rows, their n as arrival (outbox; dead: a dead letter of that turn, its body as detail). `p_talk` is
-- what few turns have: waits, answers, spawns, budgets, follows, posts; null when none has any.
-- `p_named`: runs of others that it names. All runs concerned are locked in one statement.
-- With a broker a message becomes an inbox row only where this host owns the target's shard,
-- share-locked with the fences, and nothing of its (sender, target) is still on its way.
drop function commit_turns;
create function commit_turns(
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

  -- 3. what they take must still be there; a turn short of one is refused whole
  if cardinality(b_turn) + cardinality(g_turn) + cardinality(k_turn) > 0 then
    declare short int[]; what text[];
    begin
      select array_agg(m.t), array_agg(m.what) into short, what from (
        select b.t, b.id as what from unnest(b_turn, b_run, b_agent, b_sender, b_id)
            b(t, run, agent, sender, id)
          left join inbox i on i.agent = b.agent and i.sender = b.sender and i.message_id = b.id
          where b.t <> all(bad)
            and case when i.state in ('p', 'l') then false
              when i.state = 'b' then i.run_id <> b.run else true end
        union all
        select g.t, 'signal ' || g.n from unnest(g_turn, g_run, g_n) g(t, run, n)
          left join signals s on s.run_id = g.run and s.n = g.n and not s.consumed
          where g.t <> all(bad) and s.run_id is null
        union all
        select k.t, 'answer ' || k.key from unnest(k_turn, k_run, k_key) k(t, run, key)
          left join completions c on c.parent = k.run and c.child = k.key and not c.consumed
          where k.t <> all(bad) and c.parent is null) m;
      if short is not null then
        bad := bad || short;
        return query select m.t, 'missing', null::int, m.what, false,
          null::text, null::text, null::text, null::bigint, null::text
          from unnest(short, what) m(t, what);
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
  end if;
end $$;
