-- Make a complete upload visible as an artifact, in one step; returns false if the upload is not complete. The
-- upload's own row is deleted in the same step, so the collector finds either the upload or the artifact. A repeated
-- call finds its own artifact. If another upload of the same bytes finished first, the chunks of this one are
-- deleted, or its object: see `collect_artifacts`.
create or replace function finish_artifact(
  p_tenant text, p_scope text, p_upload text, p_id text, p_size bigint, p_type text, p_chunks int,
  p_chunk_bytes int)
returns boolean
language plpgsql set search_path from current set enable_seqscan = off as $$
declare is_seen boolean; is_second boolean;
begin
  with done as (
    delete from artifact_uploads u where u.upload = p_upload and u.at <> '-infinity' returning u.upload),
  whole as (
    select d.upload from done d
      where (select count(*) from artifact_chunks c where c.upload = p_upload) = p_chunks),
  added as (
    insert into artifacts as a (tenant, scope, id, upload, size_bytes, content_type, chunk_bytes, at)
      select p_tenant, p_scope, p_id, w.upload, p_size, p_type, p_chunk_bytes, clock_timestamp() from whole w
      on conflict (tenant, scope, id) do update set at = excluded.at
      returning a.upload = p_upload as is_first),
  gone as (
    delete from artifact_chunks c where c.upload = any(array(select d.upload from done d))
      and not exists (select 1 from added a where a.is_first))
  select exists (select 1 from added), exists (select 1 from added a where not a.is_first) into is_seen, is_second;
  if is_second and p_chunk_bytes = 0 then
    insert into artifact_uploads (upload, at) values (p_upload, '-infinity');
  end if;
  return is_seen;
end $$;
