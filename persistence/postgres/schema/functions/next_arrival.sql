-- A place in the queue for a run that has no message.
create or replace function next_arrival() returns bigint language plpgsql volatile set search_path from current
as $$
begin
  return nextval(pg_get_serial_sequence('inbox', 'arrival'));
end $$;
