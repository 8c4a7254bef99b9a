-- Return the chunk of an artifact that holds the byte at `p_at`, and the chunk size. No row if there is no artifact;
-- null data if it has no chunk with that byte.
create or replace function read_artifact(p_tenant text, p_scope text, p_id text, p_at bigint)
returns table (chunk_bytes int, n int, data bytea)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
begin
  return query select a.chunk_bytes, c.n, c.data from artifacts a
    left join lateral (select k.n, k.data from artifact_chunks k
      where k.upload = a.upload and k.n = (p_at / a.chunk_bytes)::int offset 0) c on true
    where a.tenant = p_tenant and a.scope = p_scope and a.id = p_id;
end $$;
