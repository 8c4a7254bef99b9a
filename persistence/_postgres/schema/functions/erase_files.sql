-- Delete the files of a tenant; none if the table does not exist. Their bytes are artifacts.
create or replace function erase_files(p_tenant text, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare gone int;
begin
  if to_regclass('files') is null then return 0; end if;
  delete from files f where f.ctid = any(array(
    select n.ctid from files n where n.tenant = p_tenant limit most for update));
  get diagnostics gone = row_count;
  return gone;
end $$;
