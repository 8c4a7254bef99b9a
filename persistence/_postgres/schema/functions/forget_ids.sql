-- Delete ids of messages that were done 8 days ago and whose run does not exist: ids of undecodable messages, and ids
-- that an erase or `forget_agent` left. Reads `most` ids after `p_after`. Returns how many were deleted, and the id
-- to continue after; null after the last one.
create or replace function forget_ids(p_after bytea, most int, out taken int, out last bytea)
language plpgsql set search_path from current set enable_seqscan = off as $$
declare before timestamptz := present() - interval '8 days'; keys bytea[];
begin
  keys := array(select k.key from message_ids k where k.key > p_after order by k.key limit most);
  delete from message_ids k where k.key = any(array(
    select l.key from message_ids l where l.key = any(keys) and (l.at < before) is true
      and not exists (select 1 from runs r where r.run_id = l.run_id offset 0)
      for update skip locked));
  get diagnostics taken = row_count;
  last := keys[most];
end $$;
