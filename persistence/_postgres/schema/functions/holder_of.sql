-- The started run of the agent, otherwise its oldest queued run.
create or replace function holder_of(p_agent text) returns text language sql stable set search_path from current
as $$
  select r.run_id from runs r where r.agent = p_agent and r.ended_at is null
    order by (r.attempt > 0 or r.status <> 'PENDING') desc, r.arrival, r.run_id limit 1
$$;
