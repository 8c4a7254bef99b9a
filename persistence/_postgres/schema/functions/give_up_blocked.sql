-- Release a shard because code of this run blocks its host, and record a mark of it in the same transaction. Returns
-- false if another host owns the shard. Marks older than a week are deleted: the run has made progress since.
create or replace function give_up_blocked(me text, p_shard text, p_epoch bigint, p_run text, p_place text)
returns boolean language plpgsql set search_path from current as $$
begin
  perform 1 from shards s where s.shard = p_shard and s.owner = me and s.epoch = p_epoch
    for no key update;
  if not found then return false; end if;
  delete from blockings b where b.at < present() - interval '7 days';
  insert into blockings as b (run_id, shard, seqs, place)
    values (p_run, p_shard,
      array[coalesce((select max(e.seq) from event_log e where e.run_id = p_run), -1)], p_place)
    on conflict (run_id) do update set seqs = b.seqs || excluded.seqs, shard = excluded.shard,
      place = excluded.place, at = excluded.at;
  perform release_shards(me, array[p_shard], array[me], array[p_epoch]);
  return true;
end $$;
