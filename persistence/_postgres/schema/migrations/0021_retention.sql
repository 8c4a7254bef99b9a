-- What is kept has an end: ids of messages that are done leave the mailboxes for a narrow table. See ADR 0011.
-- A new table only: takes no lock that anybody holds. The indexes are in 0027.

create table message_ids (
  key bytea primary key,
  run_id text collate "C",
  at timestamptz not null
);
create index message_ids_oldest on message_ids (at);
