-- Schedules: rows that become messages in inboxes when their instant comes.
-- Who fires is decided by the shard that the agent has at that moment, which is computed, not kept: a
-- type that is declared later moves no schedule. Ticks are due by present(), the database's clock.
-- The conditions of the two partial indexes exclude each other (see 0001).
-- A new table and functions: takes no lock that anybody holds. Old hosts do not know schedules, and
-- what a new host fires is mail to them.

create sequence schedule_revisions;

create table schedules (
  tenant text collate "C" not null,
  name text collate "C" not null,
  agent text collate "C" not null,
  hash bigint not null,
  payload json not null,
  cron text,
  timezone text not null,
  at timestamptz,
  catch_up text not null,
  is_paused boolean not null,
  base_at timestamptz not null,
  next_at timestamptz,
  last_at timestamptz,
  revision bigint not null,
  primary key (tenant, name)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index schedules_due on schedules (next_at) where next_at is not null and not is_paused;
create index schedules_done on schedules (last_at) where next_at is null;

-- Write one schedule in place of the revision that the caller read, or of nothing; returns the new
-- revision, or null when something else is there.
create function put_schedule(me text, p_expected bigint, p_tenant text, p_name text, p_agent text,
  p_hash bigint, p_payload text, p_cron text, p_timezone text, p_at timestamptz, p_catch_up text,
  p_paused boolean, p_base timestamptz, p_next timestamptz, p_last timestamptz)
returns bigint language plpgsql set search_path from current as $$
declare made bigint;
begin
  if p_expected is null then
    insert into schedules (tenant, name, agent, hash, payload, cron, timezone, at, catch_up, is_paused,
        base_at, next_at, last_at, revision)
      values (p_tenant, p_name, p_agent, p_hash, p_payload::json, p_cron, p_timezone, p_at, p_catch_up,
        p_paused, p_base, p_next, p_last, nextval('schedule_revisions'))
      on conflict do nothing returning revision into made;
  else
    update schedules s set agent = p_agent, hash = p_hash, payload = p_payload::json, cron = p_cron,
        timezone = p_timezone, at = p_at, catch_up = p_catch_up, is_paused = p_paused,
        base_at = p_base, next_at = p_next, last_at = p_last, revision = nextval('schedule_revisions')
      where s.tenant = p_tenant and s.name = p_name and s.revision = p_expected
      returning s.revision into made;
  end if;
  if made is not null then
    perform nudge_owners(me, array_agg(h.owner), array_agg('schedule'::text), array_agg(p_agent),
        array_agg(null::text))
      from (select 1) one
      left join types y on y.type = agent_type(p_agent)
      join shards h on h.shard = shard_of(p_agent, p_hash, y.mode, y.partitions);
  end if;
  return made;
end $$;

create function due_schedules(p_shards text[], p_within interval, p_limit int)
returns table (tenant text, name text, agent text, payload json, cron text, timezone text,
  at timestamptz, catch_up text, is_paused boolean, base_at timestamptz, next_at timestamptz,
  last_at timestamptz, revision bigint, in_s double precision)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare horizon timestamptz := present() + p_within;
begin
  return query
    select s.tenant, s.name, s.agent, s.payload, s.cron, s.timezone, s.at, s.catch_up, s.is_paused,
        s.base_at, s.next_at, s.last_at, s.revision,
        extract(epoch from s.next_at - present())::double precision
      from schedules s left join types y on y.type = agent_type(s.agent)
      where s.next_at is not null and not s.is_paused and s.next_at <= horizon
        and shard_of(s.agent, s.hash, y.mode, y.partitions) = any(p_shards)
      order by s.next_at, s.tenant, s.name limit p_limit;
end $$;

-- Ticks: each moves its schedule on and, with a body, writes its message, or nothing happens for it.
-- A row per tick: whether that happened, and where its message waits. A message of a call whose answer
-- was lost is told again.
create function fire_schedules(f_shard text[], f_owner text[], f_epoch bigint[],
  t_tenant text[], t_name text[], t_revision bigint[], t_base timestamptz[], t_next timestamptz[],
  t_agent text[], t_hash bigint[], t_sender text[], t_id text[], t_body text[])
returns table (i int, moved boolean, arrival bigint)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare held text[]; done int[]; this timestamptz;
begin
  perform lock_types(t_agent);
  select coalesce(array_agg(l.shard), '{}') into held from (
    select s.shard from unnest(f_shard, f_owner, f_epoch) f(shard, owner, epoch)
      join shards s on s.shard = f.shard and s.owner is not distinct from f.owner and s.epoch = f.epoch
      order by s.shard for share of s) l;
  -- A younger snapshot than that of the statement that locks (see 0002): the revision decides again.
  perform 1 from unnest(t_tenant, t_name) t(tenant, name)
    join schedules s on s.tenant = t.tenant and s.name = t.name
    order by s.tenant, s.name for no key update of s;
  this := present();
  with mine as (
    update schedules s set base_at = t.base_at, next_at = t.next_at, revision = nextval('schedule_revisions'),
        last_at = case when t.body is null then s.last_at else s.next_at end
      from (select u.*, shard_of(u.agent, u.hash, y.mode, y.partitions) as shard
        from unnest(t_tenant, t_name, t_revision, t_base, t_next, t_agent, t_hash, t_body)
          with ordinality u(tenant, name, revision, base_at, next_at, agent, hash, body, ord)
        left join types y on y.type = agent_type(u.agent)) t
      where s.tenant = t.tenant and s.name = t.name and s.revision = t.revision
        and t.shard = any(held) and not s.is_paused and s.next_at is not null
        and (t.body is null or s.next_at <= this)
      returning t.ord)
    select coalesce(array_agg(m.ord::int), '{}') into done from mine m;
  insert into inbox (agent, sender, message_id, shard, hash, body)
    select t.agent, t.sender, t.id, shard_of(t.agent, t.hash, y.mode, y.partitions), t.hash, t.body::json
      from unnest(t_agent, t_hash, t_sender, t_id, t_body)
        with ordinality t(agent, hash, sender, id, body, ord)
      left join types y on y.type = agent_type(t.agent)
      where t.ord = any(done) and t.body is not null
      order by t.ord
    on conflict do nothing;
  return query
    select t.ord::int, t.ord = any(done), n.arrival
      from unnest(t_agent, t_sender, t_id) with ordinality t(agent, sender, id, ord)
      left join inbox n on n.agent = t.agent and n.sender = t.sender and n.message_id = t.id
        and n.state = 'p' and n.shard = any(held);
end $$;
