-- Draw an arrival number for a run without a message.
create or replace function next_arrival() returns bigint language plpgsql volatile set search_path from current
as $$
begin
  return nextval(pg_get_serial_sequence('inbox', 'arrival'));
end $$;
