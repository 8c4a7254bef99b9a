-- Mail: what agents got, what is on its way by a broker, how far each shard was read, and dead letters.
-- Order is kept here alone: a message becomes an inbox row only behind all that its sender sent to the same
-- agent before, which is what the sender's outbox says.

-- Whose streams are ours, and whether mail goes by a broker: once it does, it always does. Which life of the
-- server was met last, and where epochs of this life begin.
create table deployment (
  is_only boolean primary key default true check (is_only),
  id text not null,
  brokered boolean not null default false,
  life timestamptz,
  floor bigint not null default 0
);
insert into deployment (id, life) values (gen_random_uuid()::text, pg_postmaster_start_time());

-- Lives of the mail stream. An epoch is given once, whatever the name; the greatest is the present one.
-- Below `purged` messages may be gone from the stream. Null: nobody has noted it yet.
create table streams (
  name text collate "C" primary key,
  created timestamptz not null,
  epoch bigint not null unique,
  purged bigint
);

create table cursors (
  shard text collate "C" primary key,
  stream_epoch bigint not null,
  sequence bigint not null,
  at timestamptz
) with (fillfactor = 30);

-- state: p pending, l waiting for a lazy follower, who is not told of it, b bound to run_id, d done (body gone,
-- the id stays for dedup). `alone`: a run that failed with several messages gave it back; it starts a run by itself.
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
  alone boolean not null default false,
  primary key (agent, sender, message_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index inbox_pending on inbox (shard, arrival) where state = 'p';
create index inbox_lazy on inbox (shard) where state = 'l';
create index inbox_of_run on inbox (run_id) where state = 'b';
create index inbox_done on inbox (received_at) where state = 'd';
-- What waits in an agent's inbox, without what its runs have: a run that receives 100,000 messages has
-- them all, and each commit that takes one looks whether an older one of its sender waits.
create index inbox_waiting on inbox (agent, arrival) where body is not null and run_id is null;

-- Ids of messages that are done, by a hash of agent, sender and id (ADR 0011); `run_id` had the message, if any did.
create table message_ids (
  key bytea primary key,
  run_id text collate "C",
  at timestamptz not null
);
create index message_ids_oldest on message_ids (at);

-- `shard` is the sender's: its owner publishes. A dead letter's target is 'dead:' and the agent.
create table outbox (
  n bigint generated always as identity,
  sender text collate "C" not null,
  target text collate "C" not null,
  message_id text collate "C" not null,
  shard text collate "C" not null,
  target_hash bigint not null,
  dead text,
  body json not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (sender, target, message_id)
) with (autovacuum_vacuum_scale_factor = 0.05);
-- An expression, so that no plan takes this index for a search by key. No target has a line break.
create index outbox_of_pair on outbox ((sender || E'\n' || target), n);
create index outbox_of_shard on outbox (shard, n);

-- What is no message is kept once: of one publisher to one agent, all with one reason are one letter with the
-- first one's bytes and their number.
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
  redriven_at timestamptz,
  times int not null default 1
);
create index dead_letters_of_agent on dead_letters (agent, id) where redriven_at is null;
-- Also those given back: they are looked at before the run is redriven.
create index dead_letters_of_run on dead_letters (run_id) where run_id is not null;
create index dead_letters_undecodable on dead_letters (agent, sender, hashtextextended(last_error, 0))
  where reason = 'undecodable';
