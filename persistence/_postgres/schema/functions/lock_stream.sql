-- Exclusive lock to start a new epoch of the mail stream: no transaction that writes a batch of messages is open in
-- the meantime.
create or replace function lock_stream() returns void language sql
  as $$ select pg_advisory_xact_lock(hashtext('stream of ' || current_schema()), 0) $$;
