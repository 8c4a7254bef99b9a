-- no transaction
-- What waits for a person, in the order in which people see it: without it a page of approvals reads all waits of runs for
-- each other, too. Nothing else is listed by its age, so the index of all waits, which cost each ask and each join a
-- write, goes. Hosts of the release before list approvals without it, by a sort.

create index concurrently if not exists waits_for_people on waits (since, run_id, position, key)
  where kind = 'approval';
drop index concurrently if exists waits_oldest;
