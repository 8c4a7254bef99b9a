-- Return the path from the first turn of a conversation to the turn with this ordinal; empty for -1, the position
-- before all turns.
create or replace function path_to(p_agent text, p_session text, p_ordinal int) returns int4multirange
language plpgsql stable set search_path from current set enable_seqscan = off as $$
declare found_path int4multirange := '{}'; upto int := p_ordinal; first int; before int;
begin
  while upto >= 0 loop
    select b.begins, b.follows into first, before from transcript_branches b
      where b.agent = p_agent and b.session = p_session and b.begins <= upto order by b.begins desc limit 1;
    found_path := found_path + int4multirange(int4range(coalesce(first, 0), upto, '[]'));
    upto := before;
  end loop;
  return found_path;
end $$;
