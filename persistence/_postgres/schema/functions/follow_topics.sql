-- Change follows of any agents, outside of commits.
create or replace function follow_topics(p_agent text[], p_hash bigint[], p_topic text[], p_mode text[])
returns table (i int, number bigint) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  perform lock_types(p_agent);
  return query select a.i, a.number from apply_follows(p_agent, p_hash, p_topic, p_mode) a;
end $$;
