-- The name of `write_relations` in the release before. No code of ours calls it.
create or replace function talk(p_talk json, t_run text[], t_agent text[], p_bad int[], p_brokered boolean)
returns table (t int, kind text, agent text, name text, owner text, place bigint)
language sql set search_path from current as $$
select * from write_relations($1, $2, $3, $4, $5)
$$;
