-- The one sender of all messages that the run's tree began with, whether it has started or not. Null: there were
-- several, or none, or nothing is known any more. Of what a run begins with the log's first entries tell.
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
