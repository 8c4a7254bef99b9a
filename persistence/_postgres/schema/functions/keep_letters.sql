-- The name of `keep_dead_letters` in the release before. No code of ours calls it.
create or replace function keep_letters(l_shard text[], l_agent text[], l_hash bigint[], l_sender text[],
  l_id text[], l_body text[], l_reason text[], l_problem text[]) returns void
language sql set search_path from current as $$
select keep_dead_letters($1, $2, $3, $4, $5, $6, $7, $8)
$$;
