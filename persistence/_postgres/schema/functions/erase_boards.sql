-- Delete task boards of a tenant, of one agent, or of one agent in one conversation; none if the table does not
-- exist. `order by` names the intended index and sorts are off, so that the plan uses it whatever the table's
-- statistics say.
create or replace function erase_boards(p_tenant text, p_agent text, p_session text, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
declare gone int;
begin
  if to_regclass('task_boards') is null then return 0; end if;
  if p_agent is null then
    delete from task_boards b where b.ctid = any(array(
      select n.ctid from task_boards n where n.tenant = p_tenant
        order by n.tenant, n.conversation, n.agent limit most for update));
  elsif p_session is null then
    delete from task_boards b where b.ctid = any(array(
      select n.ctid from task_boards n where n.tenant = p_tenant and n.agent = p_agent
        order by n.tenant, n.agent, n.conversation limit most for update));
  else
    delete from task_boards b where b.ctid = any(array(
      select n.ctid from task_boards n where n.tenant = p_tenant and n.conversation = p_session and n.agent >= p_agent
        order by n.tenant, n.conversation, n.agent limit 1 for update)) and b.agent = p_agent;
  end if;
  get diagnostics gone = row_count;
  return gone;
end $$;
