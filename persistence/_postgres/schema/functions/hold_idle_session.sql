-- Lock a session and its conversation, so that no commit and no submit changes them in the meantime. Returns the
-- outcome: ok, unknown, deleting, or active with the number of its open runs.
create or replace function hold_idle_session(p_agent text, p_hash bigint, p_session text)
returns table (outcome text, runs int) language plpgsql set search_path from current set enable_seqscan = off as $$
declare s sessions;
begin
  runs := 0;
  perform lock_types(array[p_agent]);
  perform 1 from shards h where h.shard = (
      select shard_of(p_agent, p_hash, y.mode, y.partitions) from (select 1) one
        left join types y on y.type = agent_type(p_agent))
    for no key update;
  perform 1 from transcripts t where t.agent = p_agent and t.session = p_session for update;
  select n.* into s from sessions n where n.agent = p_agent for update;
  if s.created_at is null then
    outcome := 'unknown';
  elsif s.is_deleting then
    outcome := 'deleting';
  else
    runs := (select count(*) from (select from runs r where r.agent = p_agent and r.ended_at is null offset 0) r);
    outcome := case when runs > 0 then 'active' else 'ok' end;
  end if;
  return next;
end $$;
