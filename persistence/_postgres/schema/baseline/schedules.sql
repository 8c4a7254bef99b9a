-- Schedules: rows that become messages in inboxes when their instant comes.
-- Who fires is decided by the shard that the agent has at that moment, which is computed, not kept: a
-- type that is declared later moves no schedule. Ticks are due by present(), the database's clock.

create sequence schedule_revisions;

create table schedules (
  tenant text collate "C" not null,
  name text collate "C" not null,
  agent text collate "C" not null,
  hash bigint not null,
  payload json not null,
  cron text,
  timezone text not null,
  at timestamptz,
  catch_up text not null,
  is_paused boolean not null,
  base_at timestamptz not null,
  next_at timestamptz,
  last_at timestamptz,
  revision bigint not null,
  primary key (tenant, name)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index schedules_due on schedules (next_at) where next_at is not null and not is_paused;
create index schedules_done on schedules (last_at) where next_at is null;
