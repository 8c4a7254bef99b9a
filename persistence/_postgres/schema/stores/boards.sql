-- Task boards, a row each: one statement changes a board and locks one row only. `tasks` are the tasks by id. `calls`
-- are the tokens of the last calls that changed the board, newest first: a call whose answer was lost is repeated and
-- finds its token here.

create table task_boards (
  tenant text collate "C" not null,
  conversation text collate "C" not null,
  agent text collate "C" not null,
  title text not null,
  tasks jsonb not null,
  calls text[] not null,
  primary key (tenant, conversation, agent)
);
