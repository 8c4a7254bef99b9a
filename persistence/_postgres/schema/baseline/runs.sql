-- Runs: their logs, what they wait for, what they get, and what their trees may spend.
-- Payloads are json, never jsonb: ADR 0002.

-- A fold of event_log plus what caused the run. `log_from` is the seq of its last run.continued.
-- `open` and `ended_at`, not `status`, are what indexes test: a change of status stays HOT. `ended_as` is what
-- they may know of it: how a run ended that did not complete, FAILED or CANCELLED.
-- `swept` runs are tombstones: an id given twice still names the run it named before.
-- Of a fork `fork_of` and `fork_seq` say whose entries it begins with; its owner copies them when the agent's
-- turn comes.
create table runs (
  run_id text collate "C" primary key,
  agent text collate "C" not null,
  tenant text collate "C" not null,
  shard text collate "C" not null,
  hash bigint not null,
  status text not null default 'PENDING',
  priority int not null,
  attempt int not null default 0,
  retry_policy json,
  retry_from int,
  parent text collate "C",
  root text collate "C",
  depth int not null,
  wake json,
  wake_at timestamptz,
  parked text,
  log_from int not null default 0,
  cancel_requested text,
  result json,
  error json,
  deadline_at timestamptz,
  version text,
  trace text,
  arrival bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  open boolean not null default true,
  ended_at timestamptz,
  supervision json,
  swept boolean not null default false,
  fork_of text collate "C",
  fork_seq int,
  ended_as text
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
create index runs_open on runs (shard, run_id) where open;
create index runs_of_agent on runs (agent, arrival) where ended_at is null;
create index runs_due on runs (shard, wake_at) where wake_at is not null;
create index runs_of_parent on runs (parent) where parent is not null;
-- Lists, newest first: of all, of an agent, of a type, of a tenant, of those that ended without a result, and of
-- those that wait for an operator. The keys are short, for every suspension of a run writes them anew.
create index runs_by_age on runs (created_at);
create index runs_by_hash on runs (hash, created_at);
create index runs_by_type on runs (agent_type(agent), created_at);
create index runs_by_tenant on runs (tenant, created_at);
create index runs_by_end on runs (ended_as, created_at) where ended_as is not null;
create index runs_parked on runs (created_at) where parked is not null;
-- What is to go. Runs of which nothing is to be kept do not wait for their time.
create index runs_to_sweep on runs (ended_at) where ended_at is not null and not swept;
create index runs_of_no_trace on runs (run_id)
  where ended_at is not null and not swept and supervision ->> 'retention' = 'none';
create index runs_swept on runs (ended_at) where swept;
-- The backstop of hints that were lost: a host that dies between its commit and its NOTIFY has told nobody.
create index runs_spawned on runs (created_at) where (parent is not null and open) is true;
create index runs_to_stop on runs (run_id) where (open and cancel_requested is not null) is true;

create table event_log (
  run_id text collate "C" not null,
  seq int not null,
  kind text collate "C" not null,
  position text collate "C" not null,
  payload json not null,
  ts timestamptz not null,
  primary key (run_id, seq)
);

create table signals (
  run_id text collate "C" not null,
  sender text collate "C" not null,
  message_id text collate "C" not null,
  n bigint generated always as identity,
  name text collate "C" not null,
  payload json not null,
  consumed boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  primary key (run_id, sender, message_id)
) with (fillfactor = 80);
create index signals_waiting on signals (run_id, n) where not consumed;

-- Answers: `parent` waits, `child` is what for: the id of an ask's message, of a run, of an approval. The key is
-- what makes the ends of an ask exclusive. `run` answered. They are written by whoever's own fence holds, into any
-- shard; the waiter's run is locked too, so that either a suspending turn sees its answer or the answer sees the
-- run suspended.
create table completions (
  parent text collate "C" not null,
  child text collate "C" not null,
  status text not null,
  result json,
  error json,
  consumed boolean not null default false,
  run text collate "C",
  last_seq int not null default -1,
  at timestamptz default clock_timestamp(),
  primary key (parent, child)
) with (fillfactor = 80);
create index completions_newest on completions (at) where (not consumed) is true;

-- Open waits; `changed_at` is when it last became one without which its run cannot go on.
create table waits (
  run_id text collate "C" not null,
  position text collate "C" not null,
  key text collate "C" not null,
  kind text not null,
  agent text collate "C",
  target_run text collate "C",
  must boolean not null,
  request json,
  expires_at timestamptz,
  since timestamptz not null default present(),
  changed_at timestamptz not null default present(),
  primary key (run_id, position, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index waits_of_target on waits (target_run) where target_run is not null;
create index waits_newest on waits (changed_at) where must;
create index waits_oldest on waits (since);

-- A tree's account, made from its root's terms at the first spawn or spend. `open`: spawned, not ended.
create table budgets (
  root text collate "C" primary key,
  max_runs int not null,
  max_concurrent int,
  max_tokens bigint,
  max_cost_usd text,
  max_turns int,
  runs int not null default 0,
  open int not null default 0,
  tokens bigint not null default 0,
  cost_usd double precision not null default 0,
  turns int not null default 0
) with (fillfactor = 50);

create table agent_state (
  agent text collate "C" not null,
  key text collate "C" not null,
  value json not null,
  primary key (agent, key)
) with (fillfactor = 60);

-- What operators look at, as one host has counted it for all: counting reads every open run. One row.
create table totals (
  one boolean primary key default true check (one),
  body json,
  counted_at timestamptz,
  took interval,
  counting_until timestamptz
) with (fillfactor = 50);
