"""Rows of a database that has been at work for a while, for tests of who has to find theirs among them."""

from __future__ import annotations

from typing import Final

MAILBOX: Final = """
insert into inbox (agent, sender, message_id, shard, hash, body)
  select 'clerk/long', 'agent:desk/s', 'l' || n, 'p:clerk:0', 0, json_build_object('v', 1, 'id', 'l' || n,
      'target', 'clerk/long', 'sender', 'agent:desk/s', 'created_at', now(), 'payload', n)
    from generate_series(1, $1::int) n
"""
"""So many more messages wait for one agent."""

ENDED_RUNS: Final = """
insert into runs (run_id, agent, tenant, shard, hash, status, priority, depth, parent, root, arrival,
    attempt, created_at, open, ended_at, swept)
  select 'ended-' || n, case n % 3 when 0 then 'desk/worn' else 'desk/o' || n end, 'default',
      'p:desk:' || n % 4, n, 'COMPLETED', 5, 0,
      case when n % 2 = 0 then 'ended-' || n - 1 end, 'ended-' || n - n % 2, n, 1,
      now() - n * interval '1 s' - interval '2 days', false, now() - interval '1 day', n % 2 = 0
    from generate_series(1, $1::int) n
"""
"""So many runs that have ended, the newest first; a third of them are of one agent."""

ROWS: Final = (
    # Half of the open runs have a parent that is open, too; all wait for something.
    """
    insert into runs (run_id, agent, tenant, shard, hash, status, priority, depth, parent, root, arrival,
        wake, wake_at, attempt, created_at)
      select 'open-' || n, 'desk/o' || n, 'default', 'p:desk:' || n % 4, n,
          case n % 2 when 0 then 'SUSPENDED' else 'PENDING' end, 5, 0,
          case when n % 2 = 0 then 'open-' || n - 1 end, 'open-' || n - n % 2, n,
          '{"runs":["k"],"message":true}', now() + interval '1 day' + n * interval '1 s', 1,
          now() - n * interval '1 s' - interval '1 day' from generate_series(1, $1::int) n
    """,
    ENDED_RUNS,
    """
    insert into event_log (run_id, seq, kind, position, payload, ts)
      select 'open-' || n, s, 'effect.result', s, '{}', now()
        from generate_series(1, $1::int) n, generate_series(0, 1) s
    """,
    # Waiting, bound, handled; and one mailbox that is long.
    """
    insert into inbox (agent, sender, message_id, shard, hash, state, run_id, body, received_at)
      select 'desk/o' || n, 'agent:desk/s', s || n, 'p:desk:' || n % 4, n, s::"char",
          case s when 'b' then 'open-' || n end,
          case when s <> 'd' then json_build_object('v', 1, 'id', s || n, 'target', 'desk/o' || n,
            'sender', 'agent:desk/s', 'created_at', now(), 'payload', n) end,
          now() - interval '1 day'
        from generate_series(1, $1::int) n, unnest('{p,b,d}'::text[]) s
    """,
    MAILBOX,
    """
    insert into signals (run_id, sender, message_id, name, payload, consumed)
      select 'open-' || n, 's', 'm' || n, 'go', '{}', n % 2 = 0 from generate_series(1, $1::int) n
    """,
    """
    insert into completions (parent, child, status, consumed, at)
      select 'open-' || n, 'k' || n, 'completed', n % 2 = 0, now() - interval '1 day'
        from generate_series(1, $1::int) n
    """,
    """
    insert into waits (run_id, position, key, kind, target_run, must, since, changed_at)
      select 'open-' || n, '1', 'k' || n, 'join', 'open-' || n + 1, true, now() - interval '1 day',
          now() - interval '1 day' from generate_series(1, $1::int) n
    """,
    """
    insert into outbox (sender, target, message_id, shard, target_hash, body)
      select 'agent:desk/o' || n, 'clerk/long', 'm', 'p:away:' || n % 64, 0, '{}'
        from generate_series(1, $1::int) n
    """,
    """
    insert into dead_letters (agent, sender, message_id, body, reason, attempts, last_error, run_id)
      select 'desk/o' || n, 's', 'm', '{}', 'explicit', 1, '', 'ended-' || n
        from generate_series(1, $1::int) n
    """,
    """
    insert into message_ids (key, run_id, at)
      select message_key('desk/o' || n, 's', 'm'), 'ended-' || n, now() - interval '10 days'
        from generate_series(1, $1::int) n
    """,
    """
    insert into follows (topic, shard, follower, mode, hash)
      select 'news/' || n, 'p:desk:' || n % 4, 'desk/o' || n, 'e', n
        from generate_series(1, $1::int) n
    """,
    """
    insert into posts (topic, sender, id, message_id)
      select 'news/' || n, 's', 'p' || n, 'm' || n from generate_series(1, $1::int) n
    """,
    """
    insert into fanouts (shard, seq, topic)
      select 'p:away:' || n % 64, n, 'news/' || n from generate_series(1, $1::int) n
    """,
    """
    insert into schedules (tenant, name, agent, hash, payload, cron, timezone, catch_up, is_paused, base_at,
        next_at, last_at, revision)
      select 'default', 'n' || n, 'desk/o' || n, n, '{}', '* * * * *', 'UTC', 'last', false, now(),
          case when n % 2 = 0 then now() + interval '1 day' end, now(), n
        from generate_series(1, $1::int) n
    """,
    """
    insert into budgets (root, max_runs, open) select 'open-' || n, 50, 1
      from generate_series(1, $1::int) n
    """,
    """
    insert into agent_state (agent, key, value) select 'desk/o' || n, 'k', '{}'
      from generate_series(1, $1::int) n
    """,
    # Many sessions of two turns; and one that is long, of an agent with many sessions.
    """
    insert into transcripts (agent, session, next_ordinal, turns)
      select 'desk/o' || n, 's', 2, 2 from generate_series(1, $1::int) n
      union all select 'clerk/long', 's' || n, 0, 0 from generate_series(2, $1::int) n
      union all select 'clerk/long', 's1', $1, $1
    """,
    """
    insert into transcript_turns (agent, session, ordinal, id, run_id, tokens, body)
      select 'desk/o' || n, 's', k, 't' || k, 'ended-' || n, 9, '{"role": "user"}'::json
        from generate_series(1, $1::int) n, generate_series(0, 1) k
      union all select 'clerk/long', 's1', n - 1, 't' || n, 'ended-' || n, 9, '{"role": "user"}'::json
        from generate_series(1, $1::int) n
    """,
    # A session for each agent, of one fact; and one of many facts, branches and cuts.
    """
    insert into sessions (agent, tenant, type, owner, last_fact, created_at, last_at)
      select 'desk/o' || n, 'default', 'desk', 'p' || n, 1, now(), now() - n * interval '1 s'
        from generate_series(1, $1::int) n
      union all select 'clerk/s1', 'default', 'clerk', null, $1::int, now(), now()
    """,
    # Tokens, and as many logins of browsers that are over.
    """
    insert into api_tokens (id, digest, name, tenant, principal, scopes, is_login, parent, expires_at)
      select 'j' || n, 'e' || n, '', 'default', 'p' || n, '{operate}'::text[], true, 'i' || n, now()
        from generate_series(1, $1::int) n
      union all select 'i' || n, 'd' || n, 'n' || n, 'default', 'p' || n, '{operate}', false, null, null
        from generate_series(1, $1::int) n
    """,
    # Installed flows, of many versions.
    """
    insert into flow_bundles (tenant, bundle, version, hash, artifact, size_bytes, manifest, installed_by)
      select 'default', 'b' || n % 100, n::text, 'h' || n, 'a' || n, 9, '{}', 'p'
        from generate_series(1, $1::int) n
    """,
    """
    insert into run_snapshots (tenant, id, app, agent, run_id, seq, name, description, folded, tags, state,
        created_by)
      select 'default', n::text, 'a', 'desk/o' || n, 'r' || n, 1, 'n', '', 'n', '{}', '{}', 'p'
        from generate_series(1, $1::int) n
    """,
    """
    insert into audit (tenant, principal, action, thing, agent, outcome, write_id, at)
      select 'default', 'p', 'session.delete', 'session:desk/o' || n % 1000, 'desk/o' || n % 1000, 'done',
        nullif('w' || n, 'w' || (n - n % 2)), now()
        from generate_series(1, $1::int) n
    """,
    """
    insert into session_facts (agent, number, kind, run_id, at)
      select 'desk/o' || n, 1, 'queued', 'ended-' || n, now() from generate_series(1, $1::int) n
      union all select 'clerk/s1', n, 'queued', 'ended-' || n, now() from generate_series(1, $1::int) n
    """,
    """
    insert into transcripts (agent, session, next_ordinal, turns, path, head, cut_upto)
      values ('clerk/s1', 's1', $1::int * 2, $1::int * 2, int4multirange(int4range(0, 2)), 1, -1)
    """,
    """
    insert into transcript_turns (agent, session, ordinal, id, run_id, tokens, body, visible)
      select 'clerk/s1', 's1', n - 1, 't' || n, 'ended-' || n, 9, '{"role": "user"}'::json, true
        from generate_series(1, $1::int * 2) n
    """,
    """
    insert into transcript_branches (agent, session, begins, follows)
      select 'clerk/s1', 's1', n * 2, n from generate_series(1, $1::int - 1) n
    """,
    """
    insert into transcript_cuts (agent, session, upto, strategy, run_id, at)
      select 'clerk/s1', 's1', n * 2, 'Cut', 'ended-' || n, now() from generate_series(0, $1::int - 1) n
    """,
    # Pinned since long.
    """
    insert into artifacts (tenant, scope, id, size_bytes, content_type, upload, chunk_bytes, pins, at)
      select 'default', 'desk/o' || n, 'a', 1, 'text/plain', 'u' || n, 262144, 1, now() - interval '2 days'
        from generate_series(1, $1::int) n
    """,
    """
    insert into artifact_chunks (upload, n, data) select 'u' || n, 0, 'x'::bytea
      from generate_series(1, $1::int) n
    """,
    """
    insert into artifact_pins (tenant, scope, id, owner) select 'default', 'desk/o' || n, 'a', 'turn'
      from generate_series(1, $1::int) n
    """,
    # Each agent's on one day; and those of one agent on many.
    """
    insert into usage_totals (tenant, agent, model, day, calls, input, output, cached, cache_written,
        cost_usd, unpriced)
      select 'default', 'desk/o' || n, 'm', current_date, 1, 1, 1, 0, 0, 0, 1
        from generate_series(1, $1::int) n
      union all select 'default', 'clerk/long', 'm', date '2000-01-01' + n % 9000, 1, 1, 1, 0, 0, 0, 1
        from generate_series(1, least($1::int, 9000)) n
    """,
)
"""$1 rows of every kind, in every table that grows."""
