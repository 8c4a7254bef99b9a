-- no transaction
-- Who waits for an agent's answer: circles of waits are followed from there, too. Without it they are found by
-- reading all waits.

create index concurrently if not exists waits_of_agent on waits (agent)
  where target_run is null and agent is not null;
