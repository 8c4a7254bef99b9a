-- Topics: who follows what, and posts on their way to followers. A post is one row and one row for each shard
-- that has followers; the owners of the shards write the inbox rows, a few thousand in a commit.
-- Follows and posts have numbers of one sequence: a post is for those whose follow has a smaller number
-- and whose end, if any, a greater one. `lock_follows` makes the numbers tell the truth: whoever draws
-- one for a follow has seen every post with a smaller one, and no post is half-way meanwhile.
-- A turn changes its follows before it publishes, so that nobody who shares the lock asks for it alone.
-- What outsiders publish to a topic is mail of a shard of the type '~topic', and becomes posts in the commit that
-- moves its cursor.

create sequence follow_numbers;

-- An interval of one agent's interest; `until` null: it lasts. Modes: e eager, l lazy.
create table follows (
  topic text collate "C" not null,
  shard text collate "C" not null,
  follower text collate "C" not null,
  since bigint not null default nextval('follow_numbers'),
  until bigint,
  mode "char" not null,
  hash bigint not null,
  primary key (topic, shard, follower, since)
) with (autovacuum_vacuum_scale_factor = 0.05);
create unique index follows_active on follows (topic, shard, follower) where until is null;
create index follows_ended on follows (until) where until is not null;
-- An expression, so that no plan takes this index for a search by topic.
create index follows_of_agent on follows ((follower || E'\n'), topic);
create index follows_undeclared on follows (shard) where shard like 'u:%';

-- `body` is a follower's message up to its target, which comes last; null when every shard is done.
-- The row stays, so that its id is known.
create table posts (
  seq bigint primary key default nextval('follow_numbers'),
  topic text collate "C" not null,
  sender text collate "C" not null,
  id text collate "C" not null,
  message_id text collate "C" not null,
  shards_left int not null default 0,
  body text,
  published_at timestamptz not null default clock_timestamp(),
  unique (topic, sender, id)
) with (fillfactor = 80);
create index posts_done on posts (published_at) where body is null;

-- A post that a shard's followers have to get; those up to `after` have it.
create table fanouts (
  shard text collate "C" not null,
  seq bigint not null,
  topic text collate "C" not null,
  after text collate "C" not null default '',
  primary key (shard, seq)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
