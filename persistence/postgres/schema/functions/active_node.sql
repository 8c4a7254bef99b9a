-- The id of the last turn on the active path of a conversation.
create or replace function active_node(p_agent text, p_session text) returns text
language plpgsql stable set search_path from current set enable_seqscan = off as $$
begin
  return (select t.id from (select n.path from transcripts n where n.agent = p_agent and n.session = p_session) n
    cross join lateral unnest(coalesce(n.path, '{[0,)}')) r(part)
    cross join lateral (select t.id, t.ordinal from transcript_turns t
      where t.agent = p_agent and t.session = p_session and t.ordinal >= lower(r.part)
        and t.ordinal < coalesce(upper(r.part), 2147483647)
      order by t.ordinal desc limit 1) t
    order by t.ordinal desc limit 1);
end $$;
