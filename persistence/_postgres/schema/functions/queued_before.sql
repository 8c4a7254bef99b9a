-- Return the senders of an agent's queued runs before an arrival number, each with its first run's number.
create or replace function queued_before(p_agent text, p_upto bigint)
returns table (sender text, first bigint) language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  return query
    select b.sender, min(o.arrival) from runs o
      cross join lateral (
        select i.sender from inbox i where i.run_id = o.run_id and i.state = 'b' offset 0) b
      where o.agent = p_agent and o.ended_at is null and o.arrival < p_upto
        and o.status = 'PENDING' and o.attempt = 0 and o.cancel_requested is null
      group by b.sender;
end $$;
