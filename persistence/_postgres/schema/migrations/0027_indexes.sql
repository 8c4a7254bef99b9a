-- no transaction
-- Indexes, built beside the work of hosts, which start without them.

-- Lists of runs, newest first: of an agent, of a type, of a tenant, of those that ended without a result, and of
-- those that wait for an operator. The keys are short, for every suspension of a run writes them anew.
create index concurrently if not exists runs_by_hash on runs (hash, created_at);
create index concurrently if not exists runs_by_type on runs (agent_type(agent), created_at);
create index concurrently if not exists runs_by_tenant on runs (tenant, created_at);
create index concurrently if not exists runs_by_end on runs (ended_as, created_at)
  where ended_as is not null;
create index concurrently if not exists runs_parked on runs (created_at) where parked is not null;

-- In place of the one with the id behind the instant.
create index concurrently if not exists runs_by_age on runs (created_at);
drop index concurrently if exists runs_newest;

-- What is old: in place of a BRIN index, for once pages are used again each range of it has rows of every age.
create index concurrently if not exists inbox_done on inbox (received_at) where state = 'd';
drop index concurrently if exists inbox_received;
create index concurrently if not exists runs_swept on runs (ended_at) where swept;
