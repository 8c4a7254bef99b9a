-- Write one submit of `submit_runs`, with mode join or interrupt, of a sender that may join or interrupt only runs
-- that it started. If the agent's run was started by another sender, the submit is refused as with mode reject. The
-- run is locked, so that it still holds the agent when it is joined or asked to stop.
create or replace function submit_apart(me text, p_mode text,
  r_run text[], r_agent text[], r_hash bigint[], r_priority int[], r_retry text[], r_parent text[],
  r_root text[], r_depth int[], r_deadline timestamptz[], r_version text[], r_trace text[],
  r_supervision text[],
  m_sender text[], m_id text[], m_body text[], r_project text[] default null, r_owner text[] default null)
returns table (i int, run_id text, arrival bigint, fresh boolean, local boolean, busy boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare open_run text; known boolean; mine text;
begin
  perform lock_types(r_agent);
  if r_owner is not null and unseen_sessions(r_agent, r_owner) <> '{}' then
    return query select 1, null::text, null::bigint, false, false, false;
    return;
  end if;
  perform pg_advisory_xact_lock(hashtext('submits of ' || current_schema()), hashtext(r_agent[1]));
  select true, coalesce(n.run_id, holder_of(n.agent)) into known, mine from inbox n
    where n.agent = r_agent[1] and n.sender = m_sender[1] and n.message_id = m_id[1];
  if known is null then
    select true, k.run_id into known, mine from message_ids k
      where k.key = message_key(r_agent[1], m_sender[1], m_id[1]);
  end if;
  if known and mine <> r_run[1] and started_by(mine) = m_sender[1] then  -- an earlier call joined that run
    return query select 1, mine, null::bigint, false, false, false;
    return;
  end if;
  if r_project is not null and refused_submits(false, r_agent, r_project, m_sender, m_id) <> '{}' then
    return query select 1, null::text, null::bigint, false, false, true;
    return;
  end if;
  if known is null then
    loop
      open_run := holder_of(r_agent[1]);
      exit when open_run is null;
      perform 1 from (select r.ended_at from runs r where r.run_id = open_run offset 0 for no key update) r
        where r.ended_at is null;
      exit when found and open_run = holder_of(r_agent[1]);
    end loop;
  end if;
  if open_run is not null then
    if started_by(open_run) is distinct from m_sender[1] then
      return query select 1, open_run, null::bigint, false, false, true;
      return;
    elsif p_mode = 'join' then
      perform deliver_mail(me, r_agent, r_hash, m_sender, m_id, m_body);
      return query select 1, open_run, n.arrival, true, coalesce(s.owner = me, false), false
        from inbox n left join shards s on s.shard = n.shard
        where n.agent = r_agent[1] and n.sender = m_sender[1] and n.message_id = m_id[1];
      return;
    end if;
    perform request_cancel(me, open_run, 'interrupted by a newer submit');
  end if;
  return query select s.i, s.run_id, s.arrival, s.fresh, s.local, s.busy
    from submit_runs(me, 'queue', r_run, r_agent, r_hash, r_priority, r_retry, r_parent, r_root,
      r_depth, r_deadline, r_version, r_trace, r_supervision, m_sender, m_id, m_body, r_project, r_owner) s;
end $$;
