-- An erase of an agent finds the agent's boards in all conversations by this index.
create index if not exists task_boards_of_agent on task_boards (tenant, agent, conversation);
