-- Hosts, and the shards that they own. New tables, as in all files of the baseline.
-- Keys are compared by bytes (collate "C"), so that lock order is the same under every locale.
-- No statement's conditions imply two partial indexes of a table, nor one beside the key it means: a
-- plan made while the tables are young would scan the other index whole, and keep doing so (measured:
-- 260 signals/s instead of 10,000). Where a condition is written oddly, or a key is an expression, this is why.

create table types (
  type text collate "C" primary key,
  mode text not null check (mode in ('partitioned', 'instance')),
  partitions int not null check (partitions > 0)
);

-- One row per life of a host process. Dead when `expires_at` has passed by the database's clock.
-- `types`, `shards`: what it serves, whole types and the shards of single agents. Nothing: it is about to leave.
-- `unable`: why a host that lives cannot serve now: 'blocked' (its event loop is) or 'broker' (for a lease it
-- has had no connection). It then gives up what others can serve. 'returning': it has the broker again, for
-- less than a lease; it gives up nothing and takes nothing. 'unsure': it lost it for less than a lease; it goes
-- on as before, but others count on it no more. So a short loss, and one of all hosts, moves nothing. Null: it
-- can, or does not say. How far the wall clock of its machine is ahead of ours decides nothing.
create table hosts (
  incarnation text collate "C" primary key,
  started_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  types text[] not null default '{}',
  shards text[] not null default '{}',
  capacity int not null default 1000 check (capacity > 0),
  unable text,
  clock_ahead_s double precision
) with (fillfactor = 50);

-- Share-locked by every commit of its owner: the fence. `free_since`: since when nobody owns it; of an owned
-- shard, when it was taken late, above its owner's share.
create table shards (
  shard text collate "C" primary key,
  type text collate "C" not null,
  owner text collate "C",
  epoch bigint not null default 0,
  free_since timestamptz default present()
) with (fillfactor = 30);
create index shards_of_type on shards (type);
create index shards_of_owner on shards (owner) where owner is not null;

-- Runs whose code blocked a host for so long that it gave their shard up, with the ends of their logs
-- then. Read by whoever takes the shard.
create table blockings (
  run_id text primary key,
  shard text not null,
  seqs bigint[] not null,
  place text not null,
  at timestamptz not null default present()
);
create index blockings_of_shard on blockings (shard);
