-- Returns the chunk of an artifact in which the byte at `p_at` is, and how large its chunks are. No row: there is no
-- artifact; a null: none of its bytes is there.
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
