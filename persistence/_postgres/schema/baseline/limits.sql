-- Limits on runs at once and on starts per second, exact over all hosts. Whoever exchanges places locks
-- the rows of its limits in key order and nothing else; who is under no limit never comes here.

-- The bucket: `tokens` starts as of `filled_at`.
create table limits (
  scope text collate "C" primary key,
  max_concurrent int check (max_concurrent >= 0),
  rate_per_s double precision check (rate_per_s > 0),
  burst int not null default 0,
  weight int not null default 1,
  tokens double precision not null default 0,
  filled_at timestamptz not null default present()
) with (fillfactor = 50);

-- What a host has of a limit, and wants. Counts while the host is alive. `got_at`, `started_at`: when it
-- was last granted a place and a start, for whose turn it is where there is less than one for each.
create table limit_places (
  scope text collate "C" not null references limits on delete cascade,
  host text collate "C" not null,
  held int not null,
  wanted int not null,
  starts int not null,
  seen_at timestamptz not null,
  got_at timestamptz not null default '-infinity',
  started_at timestamptz not null default '-infinity',
  primary key (scope, host)
) with (fillfactor = 50);
