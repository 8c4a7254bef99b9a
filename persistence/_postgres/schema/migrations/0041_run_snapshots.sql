-- Snapshots of runs of graphs: the state of a run at an entry of its log, with a name and tags, by tenant. A sweep of the
-- run leaves them.
-- A new table. Hosts of the release before keep working; they know of no snapshot.

create table run_snapshots (
  tenant text collate "C" not null,
  id text collate "C" not null,
  app text collate "C" not null,
  agent text collate "C" not null,
  run_id text collate "C" not null,
  seq bigint not null,
  name text not null,
  description text not null,
  folded text not null,
  tags text[] not null,
  spec_hash text collate "C",
  state json not null,
  created_by text collate "C" not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (tenant, id)
);
create index run_snapshots_newest on run_snapshots (tenant, created_at, id);
create index run_snapshots_of_run on run_snapshots (run_id, created_at, id);
create index run_snapshots_of_agent on run_snapshots (agent);
