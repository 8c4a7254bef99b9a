-- Return the id of the turn before this one on its path.
create or replace function parent_node(p_agent text, p_session text, p_ordinal int) returns text
language plpgsql stable set search_path from current set enable_seqscan = off
set enable_sort = off as $$
declare place int := p_ordinal; below int := p_ordinal; first int; before int; parent text;
begin
  while place is not null loop  -- first the part of the path with this ordinal, then the part before it
    select b.begins, b.follows into first, before from transcript_branches b
      where b.agent = p_agent and b.session = p_session and b.begins <= place order by b.begins desc limit 1;
    select t.id into parent from transcript_turns t
      where t.agent = p_agent and t.session = p_session and t.ordinal < below and t.ordinal >= coalesce(first, 0)
      order by t.ordinal desc limit 1;
    exit when parent is not null;
    place := before;
    below := before + 1;
  end loop;
  return parent;
end $$;
