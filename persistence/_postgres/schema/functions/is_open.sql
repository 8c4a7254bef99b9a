-- True if a run of this status has not ended.
create or replace function is_open(status text) returns boolean language sql immutable parallel safe
  return status in ('PENDING', 'RUNNING', 'SUSPENDED');
