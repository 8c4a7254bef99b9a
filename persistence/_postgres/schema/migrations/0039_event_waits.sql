-- no transaction
-- Waits of graphs for an event, by its id: without it an emission reads all waits. Rows of other kinds are not in it.

create index concurrently if not exists waits_for_events on waits ((request ->> 'event'), run_id, key)
  where kind = 'event';
