-- The entry that a decision of this name is about now: the intent of the in-doubt effect at its position, or the last
-- entry of a run that is parked for another reason or waits for its next attempt. Null if there is nothing to decide.
-- Effects that were abandoned by the parking itself are still undecided, so an abandonment directly before run.parked
-- is ignored.
create or replace function to_decide(p_run text, p_name text) returns int
language plpgsql stable set search_path from current as $$
declare r runs;
begin
  select * into r from runs x where x.run_id = p_run;
  if p_name = '~retry' then
    return (select max(e.seq) from event_log e where e.run_id = p_run
      and (r.parked <> 'in_doubt' or r.status = 'PENDING'));
  elsif r.parked = 'in_doubt' and starts_with(p_name, '~resolve:') then
    return (select e.seq from (
      select * from event_log l where l.run_id = p_run and l.seq >= r.log_from
          and l.position = substr(p_name, 10)
          and (l.kind <> 'effect.abandoned' or (select n.kind from event_log n
            where n.run_id = p_run and n.seq > l.seq and n.kind <> 'effect.abandoned'
            order by n.seq limit 1) is distinct from 'run.parked')
        order by l.seq desc limit 1) e
      where e.kind in ('effect.intent', 'tool.called') and e.payload ->> 'mode' = 'at_most_once');
  end if;
  return null;
end $$;
