-- Turn an outbox message that the broker will never accept into a dead letter of its target. As in ingest_mail, its
-- id is written to the inbox before its outbox row is deleted. A message whose id is already there was received and
-- becomes no dead letter.
create or replace function dead_letter_outbox(b_sender text, b_target text, b_n bigint, b_problem text) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  perform lock_types(array[b_target]);
  perform keep_dead_letters(
      array[shard_of(o.target, o.target_hash, y.mode, y.partitions)], array[o.target],
      array[o.target_hash], array[o.sender], array[o.message_id], array[o.body::text],
      array['unpublishable'], array[b_problem])
    from outbox o left join types y on y.type = agent_type(o.target)
    where o.sender || E'\n' || o.target = b_sender || E'\n' || b_target and o.n = b_n;
  delete from outbox o
    where o.sender || E'\n' || o.target = b_sender || E'\n' || b_target and o.n = b_n;
end $$;
