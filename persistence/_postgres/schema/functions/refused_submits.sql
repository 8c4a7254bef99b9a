-- Return the numbers of submits whose sessions are being deleted, or have been deleted although they must exist. With
-- `p_hold` the sessions stay locked. A submit that was accepted before is not checked: its answer does not change.
-- `r_project` is null for a submit without a session, `r_owner` for a session that need not exist.
create or replace function refused_submits(p_hold boolean, r_agent text[], r_project text[], m_sender text[], m_id text[],
  r_owner text[] default null)
returns bigint[] language plpgsql set search_path from current set enable_seqscan = off as $$
declare fresh bigint[];
begin
  fresh := array(select q.i
    from unnest(r_agent, r_project, m_sender, m_id) with ordinality q(agent, project, sender, id, i)
    where q.project is not null
      and not exists (select from inbox n
        where n.agent = q.agent and n.sender = q.sender and n.message_id = q.id offset 0)
      and not exists (select from message_ids k where k.key = message_key(q.agent, q.sender, q.id) offset 0));
  if p_hold and cardinality(fresh) > 0 then
    perform hold_sessions(array(select r_agent[f.i] from unnest(fresh) f(i)));
  end if;
  return array(select f.i from unnest(fresh) f(i)
    cross join lateral (select n.is_deleting, n.created_at from sessions n where n.agent = r_agent[f.i] offset 0) s
    where s.is_deleting or (r_owner[f.i] is not null and s.created_at is null));
end $$;
