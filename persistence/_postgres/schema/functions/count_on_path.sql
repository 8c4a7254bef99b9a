-- Return the number of turns of a conversation on a path.
create or replace function count_on_path(p_agent text, p_session text, p_path int4multirange) returns int
language plpgsql stable set search_path from current set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off as $$
declare part int4range; total int := 0;
begin
  for part in select r.part from unnest(p_path) r(part)
  loop
    total := total + (select count(*) from (select t.ordinal from transcript_turns t
      where t.agent = p_agent and t.session = p_session and t.ordinal >= lower(part)
        and t.ordinal < coalesce(upper(part), 2147483647)
      order by t.ordinal offset 0) t);
  end loop;
  return total;
end $$;
