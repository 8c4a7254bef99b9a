-- Drop the indexes of an erased scope: their definition contains its name and their pages its rows. For a tenant all
-- of them, otherwise those of memories about `p_abouts`. A reader of the table, such as a backup, blocks the drop. It
-- waits at most 100 ms, since other statements queue behind it. `indexes`: 1 if one was dropped; `more`: another one
-- is left, or the same one.
create or replace function erase_indexes(p_tenant text, p_abouts text[])
returns table (indexes int, more boolean)
language plpgsql set search_path from current set enable_seqscan = off set lock_timeout = '100ms' as $$
declare found text[];
begin
  indexes := 0; more := false;
  if to_regclass('search_indexes') is not null then
    found := array(select s.name from search_indexes s where s.tenant = p_tenant
      and (p_abouts is null or s.on_table = 'memories' and s.scope = any(p_abouts)) order by s.name limit 2);
    more := cardinality(found) > 0;
  end if;
  if more then
    begin
      execute format('drop index if exists %I, %I', found[1], replace(found[1], '_hnsw_', '_gin_'));
      delete from search_indexes s where s.name = found[1];
      indexes := 1;
      more := cardinality(found) > 1;
    exception when lock_not_available then
      null;
    end;
  end if;
  return next;
end $$;
