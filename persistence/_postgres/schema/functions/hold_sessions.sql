-- Lock the rows of sessions until the transaction ends, and create missing ones. A session is invisible until it has
-- a fact.
create or replace function hold_sessions(p_agents text[]) returns void
language plpgsql set search_path from current as $$
begin
  insert into sessions as s (agent, tenant, type)
    select k.agent, agent_tenant(k.agent), agent_type(k.agent)
      from (select distinct u.agent from unnest(p_agents) u(agent)) k order by k.agent collate "C"
    on conflict (agent) do update set last_fact = s.last_fact where false;
end $$;
