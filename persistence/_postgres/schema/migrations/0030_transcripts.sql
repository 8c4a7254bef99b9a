-- Conversations of agents: a row for each session, which counts it, says where its window begins and is locked
-- by whoever adds to it; and its turns. Bodies are json, never jsonb: ADR 0002.

create table transcripts (
  agent text collate "C" not null,
  session text collate "C" not null,
  next_ordinal int not null default 0,
  turns int not null default 0,
  tokens bigint not null default 0,
  first_at timestamptz not null default clock_timestamp(),
  last_at timestamptz not null default clock_timestamp(),
  cut_upto int not null default -1,
  cut_strategy text,
  cut_run text collate "C",
  cut_summary json,
  cut_at timestamptz,
  primary key (agent, session)
) with (fillfactor = 70);

create table transcript_turns (
  agent text collate "C" not null,
  session text collate "C" not null,
  ordinal int not null,
  id text collate "C" not null,
  run_id text collate "C" not null,
  parent text collate "C",
  tokens int,
  body json not null,
  at timestamptz not null default clock_timestamp(),
  primary key (agent, session, ordinal)
);
create unique index transcript_turns_by_id on transcript_turns (agent, session, id);
create index transcript_turns_of_run on transcript_turns (run_id) where run_id <> '';
