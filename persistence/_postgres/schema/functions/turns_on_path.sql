-- Return turns on the active path of a conversation from an ordinal on: the first ones, or the newest ones, newest
-- first. Parts of the path are read one by one, by their keys: with sorts switched off no other index of turns is as
-- cheap.
create or replace function turns_on_path(p_agent text, p_session text, p_from int, most int, newest boolean)
returns table (ordinal int, id text, run_id text, parent text, tokens int, body json, at timestamptz, artifact text)
language plpgsql stable set search_path from current set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off as $$
#variable_conflict use_column
declare part int4range; missing int := most; n int;
begin
  for part in select r.part from transcripts t cross join lateral unnest(coalesce(t.path, '{[0,)}')) r(part)
    where t.agent = p_agent and t.session = p_session and coalesce(upper(r.part) > p_from, true)
    order by case when newest then -lower(r.part) else lower(r.part) end
  loop
    if newest then
      return query select t.ordinal, t.id, t.run_id, t.parent, t.tokens, t.body, t.at, t.artifact
        from transcript_turns t
        where t.agent = p_agent and t.session = p_session and t.ordinal >= greatest(lower(part), p_from)
          and t.ordinal < coalesce(upper(part), 2147483647)
        order by t.ordinal desc limit missing;
    else
      return query select t.ordinal, t.id, t.run_id, t.parent, t.tokens, t.body, t.at, t.artifact
        from transcript_turns t
        where t.agent = p_agent and t.session = p_session and t.ordinal >= greatest(lower(part), p_from)
          and t.ordinal < coalesce(upper(part), 2147483647)
        order by t.ordinal limit missing;
    end if;
    get diagnostics n = row_count;
    missing := missing - n;
    exit when missing <= 0;
  end loop;
end $$;
