-- no transaction
-- Lists of a principal's own sessions. Without it they are found by reading all sessions of the app.

create index concurrently if not exists sessions_of_owner on sessions (tenant, type, owner, last_at desc, agent)
  where created_at is not null and not is_deleting and owner is not null;
