-- Return the messages of a queued run that have an older waiting message or run of the same sender. None if the run
-- was asked to stop: it may end at any time.
create or replace function overtaking(p_run text)
returns table (message_id text, sender text) language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  return query
    select m.message_id, m.sender from inbox m join runs r on r.run_id = m.run_id
      where m.run_id = p_run and m.state = 'b' and r.cancel_requested is null
        and (exists (select from queued_before(m.agent, r.arrival) q where q.sender = m.sender)
          or exists (select from inbox i
            where i.agent = m.agent and i.body is not null and i.run_id is null
              and i.arrival < r.arrival and i.sender = m.sender));
end $$;
