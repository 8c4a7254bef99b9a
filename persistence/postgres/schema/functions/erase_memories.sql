-- Take memories of a tenant away, with their earlier versions and embeddings; of these scopes only, if any are given.
-- None if the table is not there.
create or replace function erase_memories(p_tenant text, p_abouts text[], most int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare gone int;
begin
  if to_regclass('memories') is null then return 0; end if;
  if p_abouts is null then
    delete from memories m where m.ctid = any(array(
      select n.ctid from memories n where n.tenant = p_tenant limit most for update));
  else
    delete from memories m where m.ctid = any(array(
      select n.ctid from memories n where n.tenant = p_tenant and n.about = any(p_abouts) limit most for update));
  end if;
  get diagnostics gone = row_count;
  return gone;
end $$;
