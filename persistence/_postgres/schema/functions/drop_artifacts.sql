-- Delete an artifact, or all artifacts of a scope, with pins and chunks. Locks the artifacts first, so that no pin is
-- added in the meantime. An object that holds the bytes is removed later: see `collect_artifacts`.
create or replace function drop_artifacts(p_tenant text, p_scope text, p_id text default null)
returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  perform 1 from artifacts a
    where a.tenant = p_tenant and a.scope = p_scope and (p_id is null or a.id = p_id)
    order by a.id for update;
  delete from artifact_pins p
    where p.tenant = p_tenant and p.scope = p_scope and (p_id is null or p.id = p_id);
  with gone as (
    delete from artifacts a
      where a.tenant = p_tenant and a.scope = p_scope and (p_id is null or a.id = p_id)
      returning a.upload, a.chunk_bytes),
  objects as (
    insert into artifact_uploads as u (upload, at) select g.upload, '-infinity' from gone g where g.chunk_bytes = 0
      on conflict (upload) do update set at = excluded.at)
  delete from artifact_chunks c where c.upload = any(array(select g.upload from gone g));
end $$;
