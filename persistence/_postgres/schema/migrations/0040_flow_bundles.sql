-- Installed bundles of flows, by tenant, name and version. The file of a bundle is an artifact of the tenant in the scope
-- `flows`, which the row's pin keeps. Row and pin come and go in one statement, so a crash leaves an artifact that nobody
-- pins, which is collected.
-- A new table. Hosts of the release before keep working; they know of no installed flow.

create table flow_bundles (
  tenant text collate "C" not null,
  bundle text collate "C" not null,
  version text collate "C" not null,
  hash text collate "C" not null,
  artifact text collate "C" not null,
  size_bytes bigint not null,
  manifest json not null,
  installed_by text collate "C" not null,
  installed_at timestamptz not null default clock_timestamp(),
  primary key (tenant, bundle, version)
);
