-- Held by whoever begins another life of the mail stream: no batch of mail is half-way meanwhile.
create or replace function lock_stream() returns void language sql
  as $$ select pg_advisory_xact_lock(hashtext('stream of ' || current_schema()), 0) $$;
