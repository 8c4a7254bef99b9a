-- Return changes whose notifications the owner of these shards may have missed: children that have not started, runs
-- that were asked to stop, and answers for suspended runs.
create or replace function unnoticed(p_shards text[], younger interval)
returns table (kind text, agent text, run_id text)
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  return query
    select 'run', r.agent, r.run_id from runs r
      where (r.parent is not null and r.open) is true and r.created_at > (select present() - younger)
        and r.shard = any(p_shards) and r.status = 'PENDING' and r.attempt = 0
    union all
    select 'cancel', r.agent, r.run_id from runs r
      where (r.open and r.cancel_requested is not null) is true and r.shard = any(p_shards)
    union all
    select distinct 'signal', r.agent, r.run_id from completions c
      cross join lateral (select * from runs r where r.run_id = c.parent offset 0) r
      where (not c.consumed) is true and c.at > (select present() - younger)
        and r.shard = any(p_shards) and r.status = 'SUSPENDED' and r.parked is null
        and c.child in (select json_array_elements_text(r.wake -> 'runs'));
end $$;
