-- Queue a new run that continues after entry p_seq of p_source, once. Returns nothing if the source does not exist or
-- was swept; last_seq is the last entry of the source's log.
create or replace function fork_run(me text, p_source text, p_seq int, p_new text, p_supervision text,
  p_deadline interval)
returns table (known boolean, last_seq int, local boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare source runs; home text; mine boolean; last int; there boolean;
begin
  select * into source from runs r where r.run_id = p_source;
  if not found then return; end if;
  perform lock_types(array[source.agent]);
  -- `sweep_these` locks the row, too: the source's log exists until this transaction ends.
  select * into source from runs r where r.run_id = p_source for no key update;
  there := exists (select 1 from runs r where r.run_id = p_new);
  if source.swept and not there then return; end if;
  select coalesce(max(e.seq), -1) into last from event_log e where e.run_id = p_source;
  select s.owner is not distinct from me, x.shard into mine, home
    from (select shard_of(source.agent, source.hash, y.mode, y.partitions) as shard from (select 1) one
      left join types y on y.type = agent_type(source.agent)) x
    left join shards s on s.shard = x.shard;
  if not there and p_seq between 0 and last then
    insert into runs (run_id, agent, tenant, shard, hash, priority, retry_policy, root, depth,
        deadline_at, version, trace, supervision, arrival, fork_of, fork_seq)
      values (p_new, source.agent, source.tenant, home, source.hash, source.priority,
        source.retry_policy, p_new, 0, present() + p_deadline, source.version, source.trace,
        p_supervision::json, next_arrival(), p_source, p_seq);
    perform nudge_owners(me, array[s.owner], array['run'], array[source.agent], array[p_new])
      from shards s where s.shard = home;
  end if;
  return query select there, last, mine;
end $$;
