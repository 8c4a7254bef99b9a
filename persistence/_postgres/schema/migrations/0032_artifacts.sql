-- Artifacts: immutable bytes by their SHA-256, once in each tenant and scope; their chunks, by the upload that
-- wrote them; uploads under way, of which nobody sees anything; and pins, which keep an artifact from being collected.
-- An artifact counts its pins, so that a collector finds those of none by their age, however many others there are.
-- Chunks are kept outside of their rows and not compressed: parts are read without the rest, and what is large
-- is mostly compressed already. A turn that is kept apart names the scope of its artifact, which goes with it.
-- New tables; `transcript_turns` gets a column without a rewrite, and a trigger, under a lock of an instant. Hosts
-- of the release before keep working, but cannot read a conversation with a turn that is kept apart.

create table artifacts (
  tenant text collate "C" not null,
  scope text collate "C" not null,
  id text collate "C" not null,
  size_bytes bigint not null,
  content_type text not null,
  upload text collate "C" not null,
  chunk_bytes int not null,
  pins int not null default 0,
  at timestamptz not null,
  primary key (tenant, scope, id)
);
create index artifacts_unpinned on artifacts (at) where pins = 0;

create table artifact_chunks (
  upload text collate "C" not null,
  n int not null,
  data bytea not null,
  primary key (upload, n)
);
alter table artifact_chunks alter column data set storage external;

create table artifact_uploads (
  upload text collate "C" primary key,
  at timestamptz not null
);

create table artifact_pins (
  tenant text collate "C" not null,
  scope text collate "C" not null,
  id text collate "C" not null,
  owner text collate "C" not null,
  primary key (tenant, scope, id, owner)
);

alter table transcript_turns add column artifact text collate "C";
create trigger artifact_goes_with_turn after delete on transcript_turns
  for each row when (old.artifact is not null) execute function drop_artifact_of_turn();
