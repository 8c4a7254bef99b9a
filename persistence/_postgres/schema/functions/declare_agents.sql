-- Declare types and agents. Rows that were written before move to the right shards under the type's lock, and follows
-- move with the followers. Returns the declared types. The shard of an undeclared type is deleted first, and with it
-- the right to read under it; the new shards have their own cursors.
create or replace function declare_agents(p_types text[], p_partitions int, p_agents text[], p_hashes bigint[])
returns table (type text, partitions int) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare every text[]; moving text[] := '{}'; clash text; made int; was text;
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
        or exists (select 1 from hosts h where h.expires_at > present() and (clash = any(h.types)
          or exists (select 1 from shards s where s.type = clash and s.shard = any(h.shards))))
        or exists (select 1 from shards s join outbox o on o.shard = s.shard where s.type = clash)
        or exists (select 1 from shards s join fanouts x on x.shard = s.shard where s.type = clash) then
      raise exception '%|%', clash, was using errcode = 'CB002';
    end if;
    delete from cursors c using shards s where s.type = clash and c.shard = s.shard;
    delete from shards where type = clash;
    delete from types where type = clash;
    moving := moving || clash;
  end loop;
  perform 1 from shards s where s.shard in (select 'u:' || t from unnest(every) t)
    order by s.shard for update;
  delete from shards s where s.shard in (select 'u:' || t from unnest(every) t);
  delete from cursors c where c.shard in (select 'u:' || t from unnest(every) t);
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
    where n.shard = 'u:' || y.type and y.type = any(every) and n.state in ('p', 'l');
  update outbox o set shard = shard_of(substr(o.target, 6), o.target_hash, y.mode, y.partitions)
    from types y where o.shard = 'u:' || y.type and y.type = any(every) and o.dead is not null;
  update outbox o set shard = shard_of('~topic/', o.target_hash, y.mode, y.partitions)
    from types y where o.shard = 'u:~topic' and y.type = '~topic' and y.type = any(every)
      and o.dead is null;
  perform move_follows(every, moving);
  if made > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return query select y.type, y.partitions from types y where y.type = any(every);
end $$;
