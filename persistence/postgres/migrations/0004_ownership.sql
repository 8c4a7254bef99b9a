-- Shards and who owns them. Lock order: types (advisory), shards, runs; each by key.
-- Functions only: takes no lock that anybody holds.

-- Make types and agents known; rows that came before move to the right shards under the type's lock.
-- Returns what is now known of the types.
create function declare_agents(p_types text[], p_partitions int, p_agents text[], p_hashes bigint[])
returns table (type text, partitions int) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare every text[]; clash text; made int; was text;
begin
  select coalesce(array_agg(x.t order by x.t), '{}') into every from (
    select unnest(p_types) as t union select agent_type(a) from unnest(p_agents) a) x;
  perform pg_advisory_xact_lock(hashtext('types of ' || current_schema()), hashtext(t.type))
    from unnest(every) t(type);
  for clash, was in
    select y.type, y.mode from types y where (y.type = any(p_types) and y.mode <> 'partitioned')
      or (y.type <> all(p_types) and y.type = any(every) and y.mode <> 'instance') order by y.type
  loop
    if exists (select 1 from runs r where agent_type(r.agent) = clash and r.open)
        or exists (select 1 from inbox n where agent_type(n.agent) = clash and n.state <> 'd')
        or exists (select 1 from shards s join hosts h on h.incarnation = s.owner
          where s.type = clash and h.expires_at > present()) then
      raise exception '%|%', clash, was using errcode = 'CB002';
    end if;
    delete from shards where type = clash;
    delete from types where type = clash;
  end loop;
  insert into types (type, mode, partitions)
    select e.type, case when e.type = any(p_types) then 'partitioned' else 'instance' end,
        p_partitions
      from unnest(every) e(type) order by e.type on conflict do nothing;
  insert into shards (shard, type)
    select n.shard, n.type from (
      select 'p:' || y.type || ':' || p as shard, y.type
        from types y, generate_series(0, y.partitions - 1) p where y.type = any(p_types)
      union
      select shard_of(a.agent, a.hash, 'instance', 1), agent_type(a.agent)
        from unnest(p_agents, p_hashes) a(agent, hash)) n
      order by n.shard on conflict do nothing;
  get diagnostics made = row_count;
  perform 1 from runs r where r.shard in (select 'u:' || t from unnest(every) t) and r.open
    order by r.run_id for no key update;
  update runs r set shard = shard_of(r.agent, r.hash, y.mode, y.partitions) from types y
    where r.shard = 'u:' || y.type and y.type = any(every) and r.open;
  update inbox n set shard = shard_of(n.agent, n.hash, y.mode, y.partitions) from types y
    where n.shard = 'u:' || y.type and y.type = any(every) and n.state = 'p';
  if made > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return query select y.type, y.partitions from types y where y.type = any(every);
end $$;

create function keep_alive(me text, lease interval) returns timestamptz
language sql set search_path from current as $$
  insert into hosts (incarnation, expires_at) values (me, present() + lease)
    on conflict (incarnation) do update set expires_at = excluded.expires_at
    returning expires_at
$$;

-- Take shards that have no living owner, and those of mine that I do not know (an answer was lost).
-- Candidates are read without a lock, locked in key order, then compared again with what was read.
create function claim_shards(me text, lease interval, p_types text[], p_shards text[],
  p_known text[], p_limit int)
returns table (shard text, epoch bigint, expires_at timestamptz)
language plpgsql set search_path from current set lock_timeout = '1s' as $$
#variable_conflict use_column
declare until timestamptz; c_shard text[]; c_owner text[]; c_epoch bigint[];
begin
  until := keep_alive(me, lease);
  delete from hosts h where h.expires_at < present() - interval '1 day'
    and not exists (select 1 from shards s where s.owner = h.incarnation);
  select array_agg(c.shard), array_agg(c.owner), array_agg(c.epoch) into c_shard, c_owner, c_epoch
    from (select s.shard, s.owner, s.epoch from shards s left join hosts h on h.incarnation = s.owner
      where (s.shard = any(p_shards) or (s.type = any(p_types) and s.shard like 'p:%'))
        and (s.owner is null or h.incarnation is null or h.expires_at < present()
          or (s.owner = me and s.shard <> all(p_known)))
      order by s.shard limit p_limit) c;
  if c_shard is null then return; end if;
  perform 1 from shards s where s.shard = any(c_shard) order by s.shard for no key update;
  return query
    update shards s set owner = me, epoch = s.epoch + 1
      from unnest(c_shard, c_owner, c_epoch) c(shard, owner, epoch)
      where s.shard = c.shard and s.owner is not distinct from c.owner and s.epoch = c.epoch
        and (c.owner is null or c.owner = me or not exists (
          select 1 from hosts h where h.incarnation = c.owner and h.expires_at >= present()))
      returning s.shard, s.epoch, until;
end $$;

create function release_shards(me text, r_shard text[], r_owner text[], r_epoch bigint[]) returns int
language plpgsql set search_path from current as $$
declare given int;
begin
  perform 1 from shards s where s.shard = any(r_shard) order by s.shard for no key update;
  update shards s set owner = null from unnest(r_shard, r_owner, r_epoch) r(shard, owner, epoch)
    where s.shard = r.shard and s.owner is not distinct from r.owner and s.epoch = r.epoch;
  get diagnostics given = row_count;
  if given > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return given;
end $$;

-- Stay alive and say what this host owns; one row with nulls when it owns nothing.
create function heartbeat(me text, lease interval)
returns table (shard text, epoch bigint, now timestamptz)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  perform keep_alive(me, lease);
  return query select s.shard, s.epoch, present() from (values (me)) m(owner)
    left join shards s on s.owner = m.owner;
end $$;
