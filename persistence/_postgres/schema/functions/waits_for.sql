-- Return the runs that a run depends on, with the waits for them; none while the run can continue. If one wait of a
-- run is marked `must`, the run can do nothing but wait.
create or replace function waits_for(p_run text) returns table (place text, run_id text, agent text)
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  if not exists (select from runs r where r.run_id = p_run and r.status in ('RUNNING', 'SUSPENDED')
      and r.parked is null and not coalesce((r.wake ->> 'message')::boolean, false))
    or not exists (select from (select m.must from waits m where m.run_id = p_run offset 0) m where m.must)
    or exists (select from (select v.key from waits v where v.run_id = p_run offset 0) v
      cross join lateral (select c.consumed from completions c
        where c.parent = p_run and c.child = v.key offset 0) c
      where not c.consumed)
  then
    return;
  end if;
  return query
    select w.position, a.run_id, a.agent
      from (select * from waits w where w.run_id = p_run offset 0) w
      left join lateral (select * from runs t where t.run_id = w.target_run offset 0) t on true
      cross join lateral (select * from runs a
        where a.run_id = case when t.run_id is null then started_on(w.agent)
          when t.ended_at is not null then null
          when t.attempt > 0 or t.status <> 'PENDING' then t.run_id
          else started_on(t.agent) end offset 0) a
      where not exists (select from completions c where c.parent = p_run and c.child = w.key offset 0)
      order by w.position;
end $$;
