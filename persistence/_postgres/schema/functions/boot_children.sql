-- Write the first messages of runs that were just spawned. Each is bound to its run and has the run's arrival number.
create or replace function boot_children(p_relations json, p_bad int[]) returns void
language plpgsql set search_path from current as $$
begin
  insert into inbox (agent, sender, message_id, arrival, shard, hash, state, run_id, body)
    overriding system value
    select r.agent, s.sender, s.id, r.arrival, r.shard, r.hash, 'b', r.run_id, s.body::json
      from json_to_recordset(p_relations -> 'spawns')
        as s(t int, run text, sender text, id text, body text)
      cross join lateral (select * from runs r where r.run_id = s.run offset 0) r
      where s.t <> all(p_bad) and s.body is not null order by r.arrival
    on conflict do nothing;
end $$;
