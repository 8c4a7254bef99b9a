-- Delete an owner's pin of an artifact, if there is one. This restarts the grace time of the artifact.
create or replace function unpin_artifact(p_tenant text, p_scope text, p_id text, p_owner text) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  perform 1 from artifacts a
    where a.tenant = p_tenant and a.scope = p_scope and a.id = p_id for update;
  delete from artifact_pins p
    where p.tenant = p_tenant and p.scope = p_scope and p.id = p_id and p.owner = p_owner;
  if not found then return; end if;
  update artifacts a set at = clock_timestamp(), pins = (select count(*) from artifact_pins p
      where p.tenant = p_tenant and p.scope = p_scope and p.id = p_id)
    where a.tenant = p_tenant and a.scope = p_scope and a.id = p_id;
end $$;
