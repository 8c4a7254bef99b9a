-- Return counts of what an erase would delete from one store, by kind; from all stores if none is named. Reads all
-- rows that it counts and locks nothing. Rows of agents are found by a range of ids: one agent's id, or a tenant's
-- ids, which begin with its name and a colon. Ids of the default tenant lie between those of other tenants. `order
-- by` names the intended index, since sorts are off.
create or replace function preview_erase(
  p_tenant text, p_agent text, p_hash bigint, p_session text, p_about text, p_store text default null)
returns table (store text, kind text, n bigint)
language plpgsql stable set search_path from current set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  runs_of text[]; in_tenant boolean := p_agent is null and p_about is null;
  low text collate "C" := coalesce(p_agent, case p_tenant when 'default' then '' else p_tenant || ':' end);
  high text collate "C" := coalesce(p_agent, case p_tenant when 'default' then chr(1114111) else p_tenant || ';' end);
  is_all boolean := p_store is null;
begin
  if p_session is not null then
    runs_of := array(select distinct o.run_id from (
      select t.run_id from transcript_turns t where t.agent = p_agent and t.session = p_session
        order by t.agent, t.session, t.ordinal offset 0) o where o.run_id <> '');
  end if;
  if p_about is null and (is_all or p_store = 'conversations') then
    return query select 'conversations', 'sessions', count(*) from transcripts t
      where t.agent between low and high and agent_tenant(t.agent) = p_tenant
        and (p_session is null or t.session = p_session);
    return query select 'conversations', 'turns', count(*) from transcript_turns t
      where t.agent between low and high and agent_tenant(t.agent) = p_tenant
        and (p_session is null or t.session = p_session);
  end if;
  if p_about is null and (is_all or p_store = 'runs') then
    return query with ended as materialized (
      select r.run_id from runs r where p_agent is null and r.tenant = p_tenant and r.ended_at is not null
      union all
      select r.run_id from runs r where r.hash = p_hash and r.agent = p_agent and r.ended_at is not null
        and (runs_of is null or r.run_id = any(runs_of)))
      select 'runs', 'runs', count(*) from ended
      union all select 'runs', 'entries', coalesce(sum(o.n), 0)::bigint from ended e cross join lateral (
        select count(*) as n from event_log l where l.run_id = e.run_id) o;
  end if;
  if p_about is null and (is_all or p_store = 'boards') and to_regclass('task_boards') is not null then
    if p_agent is null then
      return query select 'boards', 'boards', count(*) from task_boards b where b.tenant = p_tenant;
    else
      return query select 'boards', 'boards', count(*) from (
        select from task_boards b
          where b.tenant = p_tenant and b.agent = p_agent and (p_session is null or b.conversation = p_session)
          order by b.tenant, b.agent, b.conversation offset 0) k;
    end if;
  end if;
  if p_about is null and p_session is null and (is_all or p_store = 'mail') then
    return query select 'mail', 'schedules', count(*) from schedules s
      where s.tenant = p_tenant and (p_agent is null or s.agent = p_agent);
    return query select 'mail', 'letters', count(*) from dead_letters d
      where case when p_agent is null then agent_tenant(d.agent) = p_tenant else d.agent = p_agent end;
  end if;
  if p_about is null and p_session is null and (is_all or p_store = 'audit') then
    if in_tenant then
      return query select 'audit', 'audit', count(*) from audit a where a.tenant = p_tenant;
    else
      return query select 'audit', 'audit', count(*) from audit a
        where a.agent = p_agent and (a.before is not null or a.after is not null);
    end if;
  end if;
  if p_about is null and p_session is null and (is_all or p_store = 'snapshots') then
    if in_tenant then
      return query select 'snapshots', 'snapshots', count(*) from run_snapshots s where s.tenant = p_tenant;
    else
      return query select 'snapshots', 'snapshots', count(*) from run_snapshots s where s.agent = p_agent;
    end if;
  end if;
  if p_about is null and p_session is null and (is_all or p_store = 'sessions') then
    return query select 'sessions', 'sessions', count(*) from sessions s
      where s.agent between low and high and s.tenant = p_tenant and (p_agent is null or not s.is_deleting);
    return query select 'sessions', 'facts', count(*) from session_facts f
      where f.agent between low and high and agent_tenant(f.agent) = p_tenant and (p_agent is null
        or not exists (select from (select n.is_deleting from sessions n where n.agent = p_agent
          order by n.agent offset 0) s where s.is_deleting));
  end if;
  if p_about is null and p_session is null and (is_all or p_store = 'agents') then
    return query select 'agents', 'state', count(*) from agent_state a
      where a.agent between low and high and agent_tenant(a.agent) = p_tenant;
    return query select 'agents', 'follows', count(*) from (
      select f.follower from follows f where f.follower || E'\n' between low || E'\n' and high || E'\n'
        order by f.follower || E'\n', f.topic offset 0) k where agent_tenant(k.follower) = p_tenant;
    return query select 'agents', 'messages', count(*) from inbox i
      where i.state <> 'b' and i.agent between low and high and agent_tenant(i.agent) = p_tenant;
  end if;
  if p_about is null and p_session is null and (is_all or p_store = 'artifacts') then
    return query select 'artifacts', 'artifacts', count(*) from artifacts a
      where a.tenant = p_tenant and (p_agent is null or a.scope = 'agent:' || p_agent);
  end if;
  if in_tenant and (is_all or p_store = 'files') and to_regclass('files') is not null then
    return query select 'files', 'files', count(*) from files f where f.tenant = p_tenant;
  end if;
  if p_session is null and (is_all or p_store = 'memories') and to_regclass('memories') is not null then
    if in_tenant then
      return query select 'memories', 'versions', count(*) from memories m where m.tenant = p_tenant;
    else
      return query select 'memories', 'versions', coalesce(sum(o.n), 0)::bigint
        from unnest(case when p_agent is null then array[p_about]
          else array['agent:' || p_agent, 'blocks:agent:' || p_agent] end) a(about) cross join lateral (
            select count(*) as n from (
              select from memories m where m.tenant = p_tenant and m.about = a.about
                order by m.tenant, m.about, m.slot, m.version offset 0) k) o;
    end if;
  end if;
  if p_agent is null and (is_all or p_store = 'documents') and to_regclass('vector_documents') is not null then
    return query select 'documents', 'documents', count(*) from vector_documents d
      where d.tenant = p_tenant and (p_about is null or d.filterable -> 'about' = to_jsonb(p_about));
  end if;
  if p_agent is null and (is_all or p_store = 'graph') and to_regclass('graph_entities') is not null then
    return query with meant as (
      select e.id from graph_entities e where e.tenant = p_tenant and (p_about is null
        or json_typeof(e.properties -> 'about') = 'string' and e.properties ->> 'about' = p_about))
      select 'graph', 'entities', count(*) from meant
      union all select 'graph', 'relationships', count(*) from graph_relationships r
        where r.tenant = p_tenant and (p_about is null
          or json_typeof(r.properties -> 'about') = 'string' and r.properties ->> 'about' = p_about
          or r.source_id in (select m.id from meant m) or r.target_id in (select m.id from meant m));
  end if;
  if p_session is null and (is_all or p_store = 'indexes') and to_regclass('search_indexes') is not null then
    return query select 'indexes', 'indexes', count(*) from search_indexes s where s.tenant = p_tenant
      and (in_tenant or s.on_table = 'memories' and s.scope = any(case when p_agent is null then array[p_about]
        else array['agent:' || p_agent, 'blocks:agent:' || p_agent] end));
  end if;
end $$;
