-- The single sender of the messages that the run's tree started with, whether the root has started or not. Null if
-- there were several senders or none, or if the rows were deleted. The first messages of a started run are read from
-- its log's first entries.
create or replace function started_by(p_run text) returns text language sql stable set search_path from current
as $$
  select min(s.sender)
    from (select coalesce(r.root, r.run_id) as id from runs r where r.run_id = p_run) t
    cross join lateral (
      select e.payload -> 'message' ->> 'sender' as sender from event_log e
        where e.run_id = t.id and e.seq between 1 and 101
          and e.kind = 'msg.received' and e.position like 'in.%'
      union all
      select i.sender from inbox i where i.run_id = t.id and i.state = 'b') s
    having count(distinct s.sender) = 1
$$;
