-- Make a node the active one of a session; 'root': none, so that what comes next begins anew. Returns how it went: ok,
-- unknown (there is no such session), active (with the number of its open runs; 0: it is being deleted), node (it has
-- no such node). No commit of its shard is under way meanwhile, and no submit to it.
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
