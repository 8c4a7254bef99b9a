-- Return what a statement of commits has written before it calls this function, for readers that then need not read
-- it. Rows are those of `commit_runs`. `w_commit`: numbers of the commits; `w_run`, `w_seq`: the last entry of each, null
-- if nobody reads the log; `w_agent`, `w_facts`: its session and the number of facts, null if nobody reads them.
-- Outcomes: 'entries' (detail: microseconds since 1970 at which the entries were written) and 'fact' (the last facts
-- of the session: number as actual, kind as sender, microseconds as detail, run as message_id, ahead as arrival).
create or replace function written(w_commit int[], w_run text[], w_seq int[], w_agent text[], w_facts int[])
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    select w.turn, 'entries', null::int, (extract(epoch from e.ts) * 1000000)::bigint::text, false, null::text,
        null::text, null::text, null::bigint, null::text
      from unnest(w_commit, w_run, w_seq) w(turn, run, seq)
      cross join lateral (select n.ts from event_log n where n.run_id = w.run and n.seq = w.seq offset 0) e;
  return query
    select w.turn, 'fact', f.number, (extract(epoch from f.at) * 1000000)::bigint::text, false, w.agent,
        f.kind, f.run_id, f.ahead::bigint, null::text
      from unnest(w_commit, w_agent, w_facts) w(turn, agent, facts)
      cross join lateral (select * from session_facts n where n.agent = w.agent
        order by n.number desc limit w.facts) f
      order by w.turn, f.number;
end $$;
