-- The started run of an agent that has not ended.
create or replace function started_on(p_agent text) returns text language plpgsql stable set search_path from current as $$
begin
  return (
    select r.run_id from runs r
      where r.agent = p_agent and r.ended_at is null and (r.attempt > 0 or r.status <> 'PENDING')
      order by r.arrival, r.run_id limit 1);
end $$;
