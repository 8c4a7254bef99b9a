-- Audit rows: the changes that principals made over HTTP, by tenant. A row stays when its thing goes. Retention and an
-- erase of the tenant delete it. An erase of the agent, as the deletion of a session is, clears `before` and `after`.
-- A new table. Hosts of the release before keep working; they write no row.

create table audit (
  id bigint generated always as identity primary key,
  tenant text collate "C" not null,
  principal text collate "C" not null,
  action text collate "C" not null,
  thing text collate "C" not null,
  agent text collate "C",
  before json,
  after json,
  outcome text collate "C" not null,
  at timestamptz not null default clock_timestamp()
);
create index audit_of_tenant on audit (tenant, id);
create index audit_of_thing on audit (tenant, thing, id);
create index audit_of_agent on audit (agent) where before is not null or after is not null;
create index audit_by_time on audit (at);
