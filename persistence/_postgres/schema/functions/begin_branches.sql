-- Prepare locked conversations for new turns: start a branch where the active turn is not the last one.
create or replace function begin_branches(p_agents text[], p_sessions text[]) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  insert into transcript_branches as b (agent, session, begins, follows)
    select k.agent, k.session, n.next_ordinal, n.head from unnest(p_agents, p_sessions) k(agent, session)
      cross join lateral (select t.next_ordinal, t.head from transcripts t
        where t.agent = k.agent and t.session = k.session offset 0) n
      where n.head is not null
    on conflict (agent, session, begins) do update set follows = excluded.follows;
  update transcripts t set path = t.path + int4multirange(int4range(t.next_ordinal, null)), head = null
    where t.ctid = any(array(select n.ctid from unnest(p_agents, p_sessions) k(agent, session)
      cross join lateral (select t.ctid, t.head from transcripts t
        where t.agent = k.agent and t.session = k.session offset 0) n
      where n.head is not null));
end $$;
