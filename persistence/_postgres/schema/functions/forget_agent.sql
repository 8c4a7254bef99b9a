-- Delete the rows of an agent: at most `most` each of messages, dead letters, turns, facts and ended runs, and its
-- artifacts. While the agent has an open run nothing is deleted; with `p_cancel` its waiting messages are deleted and
-- the open runs are asked to stop. Locks block commits of the agent's shard in the meantime. `more`: something may be
-- left.
create or replace function forget_agent(me text, p_agent text, p_hash bigint, p_cancel boolean, most int)
returns table (open_run text, state int, follows int, messages int, letters int, runs int, more boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare this timestamptz := present(); ids text[]; turns int; facts int;
begin
  perform lock_types(array[p_agent]);
  perform 1 from shards s where s.shard = (
      select shard_of(p_agent, p_hash, y.mode, y.partitions) from (select 1) one
        left join types y on y.type = agent_type(p_agent))
    for no key update;
  perform 1 from sessions s where s.agent = p_agent for update;  -- blocks submits to it
  state := 0; follows := 0; messages := 0; letters := 0; runs := 0; more := true;
  open_run := holder_of(p_agent);
  if open_run is not null and not p_cancel then
    return next;
    return;
  end if;
  with gone as (
    delete from inbox i where i.ctid = any(array(
        select o.ctid from inbox o where o.agent = p_agent and o.state <> 'b' limit most for update))
      returning i.agent, i.sender, i.message_id, i.run_id)
  insert into message_ids (key, run_id, at)
    select message_key(g.agent, g.sender, g.message_id), g.run_id, this from gone g
    on conflict do nothing;
  get diagnostics messages = row_count;
  if open_run is not null then
    perform request_cancel(me, r.run_id, 'its agent is forgotten')
      from runs r where r.agent = p_agent and r.ended_at is null and r.cancel_requested is null;
    return next;
    return;
  end if;
  delete from agent_state a where a.agent = p_agent;
  get diagnostics state = row_count;
  perform lock_follows(true);
  delete from follows f where f.follower || E'\n' = p_agent || E'\n';
  get diagnostics follows = row_count;
  delete from dead_letters d where d.id = any(array(
    select l.id from dead_letters l where l.agent = p_agent limit most for update));
  get diagnostics letters = row_count;
  ids := array(select r.run_id from runs r
    where r.hash = p_hash and r.agent = p_agent and r.ended_at is not null limit most for update);
  runs := drop_runs(ids);
  -- Delete conversations; their counters once no turn is left.
  delete from transcript_turns t where t.ctid = any(array(
    select n.ctid from transcript_turns n where n.agent = p_agent limit most for update));
  get diagnostics turns = row_count;
  if turns < most then
    delete from transcripts t where t.ctid = any(array(
      select n.ctid from transcripts n where n.agent = p_agent for update));
  end if;
  select e.facts into facts from erase_sessions(p_agent, false, most) e;
  perform drop_artifacts(agent_tenant(p_agent), 'agent:' || p_agent);
  more := greatest(messages, letters, runs, turns, facts) = most;
  return next;
end $$;
