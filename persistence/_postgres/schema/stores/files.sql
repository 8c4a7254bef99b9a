-- Files by key, separate per tenant and scope. Their bytes are artifacts of that scope, which the file pins.

create table files (
  tenant text collate "C" not null,
  scope text collate "C" not null,
  key text collate "C" not null,
  artifact text collate "C" not null,
  primary key (tenant, scope, key)
);

-- Set a file's content to an artifact that was just stored. Returns false, and changes nothing, if the artifact does
-- not exist. The lock of the file's row orders concurrent calls.
create function put_file(p_tenant text, p_scope text, p_key text, p_artifact text) returns boolean
language plpgsql set search_path from current set enable_seqscan = off as $$
declare was text;
begin
  insert into files (tenant, scope, key, artifact) values (p_tenant, p_scope, p_key, '')
    on conflict do nothing;
  select f.artifact into was from files f
    where f.tenant = p_tenant and f.scope = p_scope and f.key = p_key for update;
  if not found then  -- the file was deleted in between
    return put_file(p_tenant, p_scope, p_key, p_artifact);
  end if;
  if not pin_artifact(p_tenant, p_scope, p_artifact, 'file:' || p_key) then
    delete from files f
      where f.tenant = p_tenant and f.scope = p_scope and f.key = p_key and f.artifact = '';
    return false;
  end if;
  update files f set artifact = p_artifact
    where f.tenant = p_tenant and f.scope = p_scope and f.key = p_key;
  if was not in ('', p_artifact) then
    perform unpin_artifact(p_tenant, p_scope, was, 'file:' || p_key);
  end if;
  return true;
end $$;

-- Delete a file, if it exists. Its bytes are deleted by the next collection after their grace time.
create function delete_file(p_tenant text, p_scope text, p_key text) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
declare was text;
begin
  delete from files f where f.tenant = p_tenant and f.scope = p_scope and f.key = p_key
    returning f.artifact into was;
  if found then
    perform unpin_artifact(p_tenant, p_scope, was, 'file:' || p_key);
  end if;
end $$;
