-- Pin an artifact for an owner; renews the time of an existing pin. Returns false if the artifact does not exist.
-- Pins are counted under the lock of the artifact's row.
create or replace function pin_artifact(p_tenant text, p_scope text, p_id text, p_owner text) returns boolean
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  perform 1 from artifacts a
    where a.tenant = p_tenant and a.scope = p_scope and a.id = p_id for update;
  if not found then return false; end if;
  insert into artifact_pins (tenant, scope, id, owner, at)
    values (p_tenant, p_scope, p_id, p_owner, clock_timestamp())
    on conflict (tenant, scope, id, owner) do update set at = excluded.at;
  update artifacts a set pins = (select count(*) from artifact_pins p
      where p.tenant = p_tenant and p.scope = p_scope and p.id = p_id)
    where a.tenant = p_tenant and a.scope = p_scope and a.id = p_id;
  return true;
end $$;
