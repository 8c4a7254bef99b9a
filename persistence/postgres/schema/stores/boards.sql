-- Task boards, a row each: one statement changes a board, and takes the lock of one row only.
-- `tasks` are the tasks by id. `calls` are the tokens of the last calls that changed the board, the newest
-- first: a call whose answer was lost is sent again, and finds here that it was executed.

create table task_boards (
  tenant text collate "C" not null,
  conversation text collate "C" not null,
  agent text collate "C" not null,
  title text not null,
  tasks jsonb not null,
  calls text[] not null,
  primary key (tenant, conversation, agent)
);
