-- Return turns of a conversation by their ids, in the order of their ordinals, each with the id of the turn before it
-- on its path. The id is compared as a range, in its order, with sorts switched off. Otherwise the planner, which
-- estimates one row per session, may read the whole conversation for each id by the index of ordinals.
create or replace function turns_by_id(p_agent text, p_session text, p_ids text[])
returns table (ordinal int, id text, run_id text, parent text, tokens int, body json, at timestamptz, artifact text,
  follows text)
language plpgsql stable set search_path from current set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off as $$
#variable_conflict use_column
begin
  return query select t.ordinal, t.id, t.run_id, t.parent, t.tokens, t.body, t.at, t.artifact,
      parent_node(p_agent, p_session, t.ordinal)
    from (select distinct u.id from unnest(p_ids) u(id)) k
    cross join lateral (select * from transcript_turns n
      where n.agent = p_agent and n.session = p_session and n.id >= k.id and n.id <= k.id
      order by n.id limit 1) t
    order by t.ordinal;
end $$;
