-- The database's clock. Tests replace it to make leases expire.
create or replace function present() returns timestamptz
  language sql volatile as $$ select clock_timestamp() $$;
