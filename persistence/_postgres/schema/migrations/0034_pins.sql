-- Pins know when they were made, null of those made before; and sessions whose deletion began are found, so that who
-- serves them goes on with it after a crash. A column without a rewrite, and an index of a table that is young. Hosts
-- of the release before keep working: the default stamps their pins.

alter table artifact_pins add column at timestamptz;
alter table artifact_pins alter column at set default clock_timestamp();

create index sessions_deleting on sessions (tenant, type, last_at) where is_deleting;
