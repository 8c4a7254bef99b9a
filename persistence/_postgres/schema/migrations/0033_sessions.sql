-- Sessions: a row for each, which counts its facts and is locked by whoever adds one; and its facts. `created_at`
-- is null of a tombstone, which keeps the number of the last fact. Until `watched_until` new facts are notified.
-- Conversations of sessions branch: `path` is what their active path has of the ordinals (null: all), `head` the
-- ordinal of its last turn, if what comes next begins a branch. A branch begins with an ordinal, and follows another.
-- Their cuts are all kept, for a cut holds for the paths that its last turn is on. Both go with their conversation.
-- New tables; `transcripts` and `transcript_turns` get columns without a rewrite, and one a trigger, under a lock of
-- an instant. Hosts of the release before keep working; they know of no branch.

create table sessions (
  agent text collate "C" primary key,
  tenant text collate "C" not null,
  type text collate "C" not null,
  project text not null default '',
  last_fact int not null default 0,
  created_at timestamptz,
  last_at timestamptz not null default clock_timestamp(),
  is_deleting boolean not null default false,
  watched_until timestamptz
) with (fillfactor = 70);
create index sessions_by_change on sessions (tenant, type, last_at desc, agent)
  where created_at is not null and not is_deleting;

create table session_facts (
  agent text collate "C" not null,
  number int not null,
  kind text collate "C" not null,
  run_id text collate "C" not null,
  ahead int not null default 0,
  at timestamptz not null,
  primary key (agent, number)
);
create index session_facts_queued on session_facts (run_id, number) where kind = 'queued';

create table transcript_branches (
  agent text collate "C" not null,
  session text collate "C" not null,
  begins int not null,
  follows int not null,
  primary key (agent, session, begins)
);

create table transcript_cuts (
  agent text collate "C" not null,
  session text collate "C" not null,
  upto int not null,
  strategy text,
  run_id text collate "C",
  summary json,
  at timestamptz,
  primary key (agent, session, upto)
);

alter table transcripts add column head int, add column path int4multirange;
alter table transcript_turns add column visible boolean;
create trigger branches_go_with_transcript after delete on transcripts
  for each row execute function drop_branches_of_transcript();
