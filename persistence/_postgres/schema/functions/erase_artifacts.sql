-- Delete artifacts of a tenant, or of one scope, with their pins. The artifacts are invisible at once. Their chunks
-- are deleted at most `most` at a time, like those of an unfinished upload: if this is not called again, the
-- collector deletes them. An object that holds the bytes is removed by the caller if it has access to the object
-- store: see `collect_artifacts`.
create or replace function erase_artifacts(p_tenant text, p_scope text, most int)
returns table (artifacts int, chunks int, more boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare keys artifacts[]; one artifacts; pinned int;
begin
  artifacts := 0; chunks := 0;
  keys := array(select a from artifacts a
    where a.tenant = p_tenant and (p_scope is null or a.scope = p_scope)
    order by a.tenant, a.scope, a.id limit most for update);
  foreach one in array keys loop
    delete from artifact_pins p where p.ctid = any(array(
      select n.ctid from artifact_pins n
        where n.tenant = one.tenant and n.scope = one.scope and n.id = one.id limit most));
    get diagnostics pinned = row_count;
    if pinned = most then  -- the artifact is deleted with the next batch
      artifacts := artifacts + 1;
      exit;
    end if;
    insert into artifact_uploads (upload, at) values (one.upload, '-infinity')
      on conflict (upload) do update set at = excluded.at;
    delete from artifacts a where a.tenant = one.tenant and a.scope = one.scope and a.id = one.id;
    artifacts := artifacts + 1;
  end loop;
  delete from artifact_chunks c where c.ctid = any(array(
    select o.place from (select u.upload from artifact_uploads u
        where u.at = '-infinity' and not starts_with(u.upload, 'object:')) d
      cross join lateral (select n.ctid as place from artifact_chunks n where n.upload = d.upload limit most) o
      limit most));
  get diagnostics chunks = row_count;
  if chunks < most then
    delete from artifact_uploads u where u.upload = any(array(
      select o.upload from artifact_uploads o where o.at = '-infinity'
        and not starts_with(o.upload, 'object:') for update skip locked));
  end if;
  more := artifacts > 0 or chunks = most;
  return next;
end $$;
