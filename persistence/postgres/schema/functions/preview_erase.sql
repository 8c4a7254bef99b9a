-- Counts of what an erase would take away, by store and kind. Reads all that it counts, and locks nothing.
create or replace function preview_erase(p_tenant text, p_agent text, p_hash bigint, p_session text, p_about text)
returns table (store text, kind text, n bigint)
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
declare runs_of text[]; in_tenant boolean := p_agent is null and p_about is null;
begin
  if p_session is not null then
    runs_of := array(select distinct t.run_id from transcript_turns t
      where t.agent = p_agent and t.session = p_session and t.run_id <> '');
  end if;
  if p_about is null then
    return query select 'conversations', 'sessions', count(*) from transcripts t
      where case when p_agent is null then agent_tenant(t.agent) = p_tenant else t.agent = p_agent end
        and (p_session is null or t.session = p_session);
    return query select 'conversations', 'turns', count(*) from transcript_turns t
      where case when p_agent is null then agent_tenant(t.agent) = p_tenant else t.agent = p_agent end
        and (p_session is null or t.session = p_session);
    return query with ended as (
      select r.run_id from runs r where r.tenant = p_tenant and r.ended_at is not null
        and (p_agent is null or r.hash = p_hash and r.agent = p_agent)
        and (runs_of is null or r.run_id = any(runs_of)))
      select 'runs', 'runs', count(*) from ended
      union all select 'runs', 'entries', count(*) from ended e join event_log l on l.run_id = e.run_id;
    if to_regclass('task_boards') is not null then
      return query select 'boards', 'boards', count(*) from task_boards b where b.tenant = p_tenant
        and (p_agent is null or b.agent = p_agent) and (p_session is null or b.conversation = p_session);
    end if;
  end if;
  if p_about is null and p_session is null then
    return query select 'mail', 'schedules', count(*) from schedules s
      where s.tenant = p_tenant and (p_agent is null or s.agent = p_agent);
    return query select 'mail', 'letters', count(*) from dead_letters d
      where case when p_agent is null then agent_tenant(d.agent) = p_tenant else d.agent = p_agent end;
    return query select 'sessions', 'sessions', count(*) from sessions s
      where case when p_agent is null then s.tenant = p_tenant else s.agent = p_agent and not s.is_deleting end;
    return query select 'sessions', 'facts', count(*) from session_facts f
      where case when p_agent is null then agent_tenant(f.agent) = p_tenant else f.agent = p_agent
        and not exists (select from sessions s where s.agent = p_agent and s.is_deleting) end;
    return query select 'agents', 'state', count(*) from agent_state a
      where case when p_agent is null then agent_tenant(a.agent) = p_tenant else a.agent = p_agent end;
    return query select 'agents', 'follows', count(*) from follows f
      where case when p_agent is null then agent_tenant(f.follower) = p_tenant else f.follower = p_agent end;
    return query select 'agents', 'messages', count(*) from inbox i
      where i.state <> 'b'
        and case when p_agent is null then agent_tenant(i.agent) = p_tenant else i.agent = p_agent end;
    return query select 'artifacts', 'artifacts', count(*) from artifacts a
      where a.tenant = p_tenant and (p_agent is null or a.scope = 'agent:' || p_agent);
  end if;
  if in_tenant and to_regclass('files') is not null then
    return query select 'files', 'files', count(*) from files f where f.tenant = p_tenant;
  end if;
  if p_session is null and to_regclass('memories') is not null then
    return query select 'memories', 'versions', count(*) from memories m where m.tenant = p_tenant
      and (p_about is null or m.about = p_about)
      and (p_agent is null or m.about in ('agent:' || p_agent, 'blocks:agent:' || p_agent));
  end if;
  if p_agent is null and to_regclass('vector_documents') is not null then
    return query select 'documents', 'documents', count(*) from vector_documents d
      where d.tenant = p_tenant and (p_about is null or d.filterable -> 'about' = to_jsonb(p_about));
  end if;
  if p_agent is null and to_regclass('graph_entities') is not null then
    return query with meant as (
      select e.id from graph_entities e where e.tenant = p_tenant and (p_about is null
        or json_typeof(e.properties -> 'about') = 'string' and e.properties ->> 'about' = p_about))
      select 'graph', 'entities', count(*) from meant
      union all select 'graph', 'relationships', count(*) from graph_relationships r
        where r.tenant = p_tenant and (p_about is null
          or json_typeof(r.properties -> 'about') = 'string' and r.properties ->> 'about' = p_about
          or r.source_id in (select m.id from meant m) or r.target_id in (select m.id from meant m));
  end if;
end $$;
