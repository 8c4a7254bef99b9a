-- Delete facts of a session that is being deleted, at most `most`; with the last ones its row becomes a tombstone.
create or replace function finish_delete_session(p_agent text, most int)
returns table (gone int, more boolean) language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  gone := 0; more := false;
  perform 1 from (select n.created_at, n.is_deleting from sessions n where n.agent = p_agent
      offset 0 for update) s
    where s.created_at is not null and s.is_deleting;
  if found then
    delete from session_facts f where f.ctid = any(array(
      select n.ctid from session_facts n where n.agent = p_agent order by n.number limit most));
    get diagnostics gone = row_count;
    more := gone = most;
    if not more then
      update sessions s set created_at = null, is_deleting = false, project = '', title = '', title_folded = '',
          metadata = '{}'
        where s.agent = p_agent;
      gone := gone + 1;
    end if;
  end if;
  return next;
end $$;
