-- The name of `redrive_dead_letters` in the release before, for its hosts that still run. No code of ours calls it.
create or replace function redrive_letters(me text, d_id bigint[], m_agent text[], m_hash bigint[],
  m_sender text[], m_id text[], m_body text[])
returns table (i int, arrival bigint) language sql set search_path from current as $$
select * from redrive_dead_letters($1, $2, $3, $4, $5, $6, $7)
$$;
