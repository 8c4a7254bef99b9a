-- True if the agent has an older open run or waiting message. Hardly ever true, since the oldest starts first.
create or replace function waits_before(p_agent text, p_upto bigint) returns boolean
language plpgsql stable set search_path from current as $$
begin
  return exists (select from runs o where o.agent = p_agent and o.ended_at is null and o.arrival < p_upto)
    or exists (select from inbox i where i.agent = p_agent and i.body is not null and i.run_id is null
      and i.arrival < p_upto);
end $$;
