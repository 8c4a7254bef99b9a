-- Artifacts: immutable bytes by their SHA-256, once in each tenant and scope; their chunks, by the upload that
-- wrote them; uploads under way, of which nobody sees anything; and pins, which keep an artifact from being collected.
-- Chunks are kept outside of their rows and not compressed: parts are read without the rest, and what is large
-- is mostly compressed already. New tables only: takes no lock that anybody holds, and hosts of the release before
-- do not know them.

create table artifacts (
  tenant text collate "C" not null,
  scope text collate "C" not null,
  id text collate "C" not null,
  size_bytes bigint not null,
  content_type text not null,
  upload text collate "C" not null,
  chunk_bytes int not null,
  at timestamptz not null,
  primary key (tenant, scope, id)
);
create index artifacts_by_age on artifacts (at);

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
