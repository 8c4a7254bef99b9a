-- Delete audit rows of a tenant, or clear the values of those of one agent.
create or replace function erase_audit(p_tenant text, p_agent text, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
declare gone int;
begin
  if p_agent is null then
    delete from audit a where a.ctid = any(array(
      select n.ctid from audit n where n.tenant = p_tenant order by n.tenant, n.id limit most for update));
  else
    update audit a set before = null, after = null where a.ctid = any(array(
      select n.ctid from audit n where n.agent = p_agent and (n.before is not null or n.after is not null)
        order by n.agent limit most for update));
  end if;
  get diagnostics gone = row_count;
  return gone;
end $$;
