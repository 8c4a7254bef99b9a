-- Write replies of runs to the runs that asked their agents. Returns the runs that have an answer now.
create or replace function keep_replies(p_relations json, r_run text[], p_bad int[])
returns table (t int, waiter text) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    with kept as (
      insert into completions (parent, child, status, result, error, run, last_seq)
        select w.run_id, a.key, a.status, a.result::json, a.error::json, coalesce(a.by, r.run_id),
            case when a.last >= 0 then a.last
              else (select max(e.seq) from event_log e where e.run_id = r.run_id) end
          from json_to_recordset(p_relations -> 'answers') as a(t int, run text, key text, status text,
            result text, error text, by text, last int)
          cross join lateral (select * from runs r where r.run_id = r_run[a.t] offset 0) r
          cross join lateral (select * from runs w where w.run_id = a.run offset 0) w
          where a.t <> all(p_bad) and w.tenant = r.tenant and not w.swept and exists (
            select 1 from inbox i where i.agent = r.agent and i.sender = 'agent:' || w.agent
              and i.message_id = a.key offset 0)
          order by w.run_id, a.key
        on conflict do nothing returning parent, run)
    select array_position(r_run, k.run), k.parent from kept k;
end $$;
