-- Take task boards of a tenant away, of one agent, or of one agent in one conversation; none if the table is not there.
create or replace function erase_boards(p_tenant text, p_agent text, p_session text, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare gone int;
begin
  if to_regclass('task_boards') is null then return 0; end if;
  delete from task_boards b where b.ctid = any(array(
    select n.ctid from task_boards n
      where n.tenant = p_tenant and (p_session is null or n.conversation = p_session)
        and (p_agent is null or n.agent = p_agent)
      limit most for update));
  get diagnostics gone = row_count;
  return gone;
end $$;
