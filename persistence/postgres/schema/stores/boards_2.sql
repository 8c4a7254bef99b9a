-- Boards of one agent, over all conversations, are found by this when the agent is erased.
create index if not exists task_boards_of_agent on task_boards (tenant, agent, conversation);
