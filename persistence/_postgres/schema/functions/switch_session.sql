-- Make a node the active one of a session; 'root': no node, so that the next turn starts a new path. Returns the
-- outcome: ok, unknown (there is no such session), active (with the number of its open runs; 0 if it is being
-- deleted), node (there is no such node). Locks block commits of its shard and submits to it in the meantime.
create or replace function switch_session(p_agent text, p_hash bigint, p_session text, p_node text)
returns table (outcome text, runs int) language plpgsql set search_path from current set enable_seqscan = off as $$
declare place int := -1;
begin
  select h.outcome, h.runs into outcome, runs from hold_idle_session(p_agent, p_hash, p_session) h;
  if outcome = 'deleting' then
    outcome := 'active';
  elsif outcome = 'ok' then
    if p_node <> 'root' then
      place := (select t.ordinal from turns_by_id(p_agent, p_session, array[p_node]) t);
    end if;
    if place is not null then
      perform move_head(p_agent, p_session, place);
    else
      outcome := 'node';
    end if;
  end if;
  return next;
end $$;
