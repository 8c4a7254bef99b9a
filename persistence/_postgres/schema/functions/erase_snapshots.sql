-- Delete run snapshots of a tenant, or of one agent. `order by` names the intended index and sorts are off, so that
-- the plan uses it whatever the table's statistics say.
create or replace function erase_snapshots(p_tenant text, p_agent text, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
declare gone int;
begin
  if p_agent is null then
    delete from run_snapshots s where s.ctid = any(array(
      select n.ctid from run_snapshots n where n.tenant = p_tenant order by n.tenant, n.id limit most for update));
  else
    delete from run_snapshots s where s.ctid = any(array(
      select n.ctid from run_snapshots n where n.agent = p_agent order by n.agent limit most for update));
  end if;
  get diagnostics gone = row_count;
  return gone;
end $$;
