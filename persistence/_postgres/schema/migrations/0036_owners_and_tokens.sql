-- A session made over HTTP belongs to a principal of its tenant, also after it was deleted: `owner` is null of one that
-- is nobody's. Tokens of the API: of the secret only its SHA-256 is kept. A login is the token of a browser, made from
-- another one (`parent`), which it ends with.
-- A column without a rewrite, and a new table. Hosts of the release before keep working; they know of no owner.

alter table sessions add column owner text collate "C";

create table api_tokens (
  id text collate "C" primary key,
  digest text collate "C" not null unique,
  name text collate "C" not null,
  tenant text collate "C" not null,
  principal text collate "C" not null,
  scopes text[] not null,
  is_login boolean not null default false,
  parent text collate "C",
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);
create unique index api_tokens_by_name on api_tokens (name) where revoked_at is null and not is_login;
create index api_tokens_of_parent on api_tokens (parent) where parent is not null;
create index api_tokens_of_principal on api_tokens (tenant, principal) where is_login;
