-- Keep what ends a wait of a run; a person's decision, and the answer to a graph's wait, only while the run waits for it.
-- No row: there is no such run. `same`: this very answer is there.
create or replace function give_answer(me text, p_run text, p_key text, p_status text, p_result text,
  p_error text, p_by text, p_last int)
returns table (agent text, fresh boolean, same boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made boolean;
begin
  perform 1 from runs r where r.run_id = p_run for no key update;
  insert into completions (parent, child, status, result, error, run, last_seq)
    select r.run_id, p_key, p_status, p_result::json, p_error::json, p_by, p_last
      from runs r where r.run_id = p_run
        and (p_status not in ('approved', 'denied', 'resumed')
          or exists (select 1 from waits w where w.run_id = p_run and w.key = p_key))
    on conflict do nothing;
  made := found;
  if made then
    perform nudge_owners(me, array[s.owner], array['signal'], array[r.agent], array[r.run_id])
      from runs r join shards s on s.shard = r.shard where r.run_id = p_run and is_open(r.status);
  end if;
  return query
    select r.agent, made, coalesce(c.status = p_status and c.result::text is not distinct from p_result
        and c.error::text is not distinct from p_error and c.run is not distinct from p_by, false)
      from runs r left join completions c on c.parent = r.run_id and c.child = p_key
      where r.run_id = p_run;
end $$;
