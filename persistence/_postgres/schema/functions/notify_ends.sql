-- Answer the runs that wait for the end of these runs, and their parents; also the questions in messages bound to
-- them, as long as the bodies are stored. Returns the runs that have an answer now, each with the ended run.
create or replace function notify_ends(p_ended text[]) returns table (by text, waiter text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    with told as (
      select r.run_id as by, r.parent as waiter, r.run_id as key from runs r
        where r.run_id = any(p_ended)
      union
      select w.target_run, w.run_id, w.key from waits w where w.target_run = any(p_ended)
      union
      select i.run_id, a.run_id, i.message_id
        from (select n.run_id, n.message_id, n.sender, asker_of(n.body) as asker from inbox n
          where n.run_id = any(p_ended) and n.state = 'b' offset 0) i
        cross join lateral (select r.run_id, r.agent from runs r where r.run_id = i.asker offset 0) a
        where i.sender = 'agent:' || a.agent)
    insert into completions (parent, child, status, result, error, run, last_seq)
      select w.run_id, t.key, lower(r.status), case r.status when 'COMPLETED' then r.result end,
          end_error(r.status, r.error, r.cancel_requested), r.run_id,
          coalesce((select max(e.seq) from event_log e where e.run_id = r.run_id), -1)
        from told t
        cross join lateral (select * from runs r where r.run_id = t.by offset 0) r
        cross join lateral (select * from runs w where w.run_id = t.waiter offset 0) w
        where w.tenant = r.tenant and not w.swept
        order by w.run_id, t.key
      on conflict do nothing returning run, parent;
end $$;
