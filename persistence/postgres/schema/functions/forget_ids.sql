-- Forget ids of messages that were done 8 days ago and name no run that is there: what was no message, and what the
-- forgetting of an agent, or an erase, has left. Looks at `most` ids behind `p_after`. Returns how many went, and behind
-- which one to look next; null: it was the last one.
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
