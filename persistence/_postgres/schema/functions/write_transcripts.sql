-- Write what commits add to sessions of their agents, and delete what they clear. `p`: turns, cuts and clear, each
-- with t, the number of its commit; rows of commits in `bad` are skipped. The conversation's row is locked, so
-- ordinals are consecutive. A turn whose id the session has is skipped; a cut is written only if the stored cut is
-- the one that its run read. `artifacts`: those of turns that are stored as artifacts; they were stored before and
-- are pinned here. If one was collected, the whole call fails and the caller stores it again. `sessions`: the effects
-- of commits on the sessions of their agents; the active turn changes before turns are added, facts are written after
-- them. Turns are found by id as in `turns_by_id`.
create or replace function write_transcripts(p json, r_run text[], r_agent text[], bad int[])
returns void
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
declare
  at timestamptz := clock_timestamp(); agents text[]; sessions text[]; held int; branches boolean; apart record;
begin
  if p -> 'sessions' is not null then
    perform move_head(k.agent, k.session, k.ordinal) from (
      select r_agent[x.t] as agent, x.session, n.ordinal
        from json_to_recordset(p -> 'sessions') as x(t int, session text, head text)
        cross join lateral (select -1 as ordinal where x.head = 'root'
          union all (select n.ordinal from transcript_turns n
            where n.agent = r_agent[x.t] and n.session = x.session and n.id >= x.head and n.id <= x.head
              and x.head <> 'root' order by n.id limit 1)) n
        where x.t <> all(bad) order by 1, 2) k;
  end if;
  if p -> 'turns' is not null then
    select array_agg(k.agent order by k.agent, k.session), array_agg(k.session order by k.agent, k.session)
      into agents, sessions from (
      select distinct r_agent[x.t] as agent, x.session
        from json_to_recordset(p -> 'turns') as x(t int, session text) where x.t <> all(bad)) k;
    loop
      insert into transcripts (agent, session, first_at, last_at)
        select k.agent, k.session, at, at from unnest(agents, sessions) k(agent, session)
        on conflict do nothing;
      select count(*), bool_or(n.branches) into held, branches from unnest(agents, sessions) k(agent, session)
        cross join lateral (select n.head is not null as branches from transcripts n
          where n.agent = k.agent and n.session = k.session for update) n;
      exit when held = coalesce(cardinality(agents), 0);  -- otherwise a conversation was deleted in the meantime
    end loop;
    if branches then
      perform begin_branches(agents, sessions);
    end if;
    with told as materialized (
      select r_agent[x.t] as agent, r_run[x.t] as run, x.session, x.id, x.parent, x.tokens, x.body, x.artifact,
          x.visible, row_number() over () as n
        from json_to_recordset(p -> 'turns')
          as x(t int, session text, id text, parent text, tokens int, body text, artifact text,
            visible boolean)
        where x.t <> all(bad)),
    fresh as materialized (
      select distinct on (m.agent, m.session, m.id) m.* from told m
        left join lateral (select k.ordinal from transcript_turns k
          where k.agent = m.agent and k.session = m.session and k.id >= m.id and k.id <= m.id
          order by k.id limit 1) known on true
        where known.ordinal is null
        order by m.agent, m.session, m.id, m.n),
    added as (
      insert into transcript_turns (agent, session, ordinal, id, run_id, parent, tokens, body, at, artifact,
          visible)
        select f.agent, f.session,
            s.next_ordinal + row_number() over (partition by f.agent, f.session order by f.n) - 1,
            f.id, f.run, f.parent, f.tokens, f.body::json, at, f.artifact, f.visible
          from fresh f cross join lateral (select n.next_ordinal from transcripts n
            where n.agent = f.agent and n.session = f.session offset 0) s
        returning transcript_turns.agent, transcript_turns.session, transcript_turns.tokens)
    update transcripts s set next_ordinal = s.next_ordinal + c.n, turns = s.turns + c.n,
        tokens = s.tokens + c.tokens, last_at = at
      from (select a.n, a.tokens, k.place
        from (select d.agent, d.session, count(*) as n, coalesce(sum(d.tokens), 0) as tokens
          from added d group by d.agent, d.session) a
        cross join lateral (select n.ctid as place from transcripts n
          where n.agent = a.agent and n.session = a.session offset 0) k) c
      where s.ctid = c.place;
  end if;
  if p -> 'artifacts' is not null then
    for apart in select distinct agent_tenant(r_agent[x.t]) as tenant, x.scope, x.artifact as id
        from json_to_recordset(p -> 'artifacts') as x(t int, scope text, artifact text, session text, turn text)
          cross join lateral (select n.artifact from transcript_turns n
            where n.agent = r_agent[x.t] and n.session = x.session and n.id >= x.turn and n.id <= x.turn
            order by n.id limit 1) n
        where x.t <> all(bad) and n.artifact = x.scope  -- otherwise its session had another turn of this id
        order by 1, 2, 3
    loop
      if not pin_artifact(apart.tenant, apart.scope, apart.id, 'turn') then
        raise exception 'an artifact of a turn was collected before the commit that refers to it';
      end if;
    end loop;
  end if;
  if p -> 'cuts' is not null then
    update transcripts s set cut_upto = c.upto, cut_strategy = c.strategy, cut_run = c.run,
        cut_summary = c.summary::json, cut_at = at, cut_changes = c.changes::json
      from (select x.upto, x.previous, x.strategy, x.summary, x.changes, r_run[x.t] as run, k.place
        from json_to_recordset(p -> 'cuts')
          as x(t int, session text, upto int, previous int, strategy text, summary text,
            changes text)
        cross join lateral (select n.ctid as place from transcripts n
          where n.agent = r_agent[x.t] and n.session = x.session offset 0) k
        where x.t <> all(bad)) c
      where s.ctid = c.place and s.cut_upto = c.previous and c.upto < s.next_ordinal
        and (s.path is null or c.upto < 0 or s.path @> c.upto);
    if p -> 'kept' is not null then  -- cuts of conversations that may branch
      insert into transcript_cuts as k (agent, session, upto, strategy, run_id, summary, at)
        select c.agent, c.session, c.cut_upto, c.cut_strategy, c.cut_run, c.cut_summary, c.cut_at
          from (select distinct r_agent[x.t] as agent, x.session, r_run[x.t] as run
            from json_to_recordset(p -> 'kept') as x(t int, session text) where x.t <> all(bad)) x
          cross join lateral (select n.* from transcripts n
            where n.agent = x.agent and n.session = x.session offset 0) c
          where c.cut_upto >= 0 and c.cut_run = x.run
        on conflict (agent, session, upto) do update
          set strategy = excluded.strategy, run_id = excluded.run_id, summary = excluded.summary, at = excluded.at;
    end if;
  end if;
  if p -> 'clear' is not null then
    perform forget_turns(array(select r_run[x.t::int]
      from json_array_elements_text(p -> 'clear') as x(t) where x.t::int <> all(bad)), null);
  end if;
  if p -> 'sessions' is not null then
    perform change_sessions(p -> 'sessions', r_run, r_agent, bad);
  end if;
end $$;
