-- The rows of the runtime. Payloads are json, never jsonb: ADR 0002.
-- Keys are compared by bytes (collate "C"), so that lock order is the same under every locale.
-- No statement's conditions imply two partial indexes of a table, nor one beside the key it means: a
-- plan made while the tables are young would scan the other index whole, and keep doing so (measured:
-- 260 signals/s instead of 10,000).
-- New tables only: takes no lock that anybody holds.

create table types (
  type text collate "C" primary key,
  mode text not null check (mode in ('partitioned', 'instance')),
  partitions int not null check (partitions > 0)
);

-- One row per life of a host process. Dead when `expires_at` has passed by the database's clock.
create table hosts (
  incarnation text collate "C" primary key,
  started_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null
) with (fillfactor = 50);

-- Share-locked by every commit of its owner: the fence.
create table shards (
  shard text collate "C" primary key,
  type text collate "C" not null,
  owner text collate "C",
  epoch bigint not null default 0
) with (fillfactor = 30);
create index shards_of_type on shards (type);
create index shards_of_owner on shards (owner) where owner is not null;

-- A fold of event_log plus what caused the run. `log_from` is the seq of its last run.continued.
-- `open` and `ended_at`, not `status`, are what indexes test: a change of status stays HOT.
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
  ended_at timestamptz
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
create index runs_open on runs (shard, run_id) where open;
create index runs_of_agent on runs (agent, arrival) where ended_at is null;
create index runs_due on runs (shard, wake_at) where wake_at is not null;
create index runs_of_parent on runs (parent) where parent is not null;
create index runs_newest on runs (created_at, run_id);

create table event_log (
  run_id text collate "C" not null,
  seq int not null,
  kind text collate "C" not null,
  position text collate "C" not null,
  payload json not null,
  ts timestamptz not null,
  primary key (run_id, seq)
);

-- state: p pending, b bound to run_id, d done (body gone, the id stays for dedup).
create table inbox (
  agent text collate "C" not null,
  sender text collate "C" not null,
  message_id text collate "C" not null,
  arrival bigint generated always as identity,
  shard text collate "C" not null,
  hash bigint not null,
  state "char" not null default 'p',
  run_id text collate "C",
  body json,
  received_at timestamptz not null default clock_timestamp(),
  primary key (agent, sender, message_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index inbox_pending on inbox (shard, arrival) where state = 'p';
create index inbox_of_agent on inbox (agent, arrival) where body is not null;
create index inbox_of_run on inbox (run_id) where state = 'b';

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

create table completions (
  parent text collate "C" not null,
  child text collate "C" not null,
  status text not null,
  result json,
  error json,
  consumed boolean not null default false,
  primary key (parent, child)
) with (fillfactor = 80);

create table agent_state (
  agent text collate "C" not null,
  key text collate "C" not null,
  value json not null,
  primary key (agent, key)
) with (fillfactor = 60);

create table dead_letters (
  id bigint generated always as identity primary key,
  agent text collate "C" not null,
  sender text collate "C" not null,
  message_id text collate "C" not null,
  body json not null,
  reason text not null,
  attempts int not null,
  last_error text not null,
  run_id text collate "C",
  at timestamptz not null default clock_timestamp(),
  redriven_at timestamptz
);
create index dead_letters_of_agent on dead_letters (agent, id) where redriven_at is null;
