-- See baseline/topics.sql: exclusive to change follows, shared to write posts.
create or replace function lock_follows(alone boolean) returns void language plpgsql set search_path from current
as $$
begin
  if alone then
    perform pg_advisory_xact_lock(hashtext('follows of ' || current_schema()), 0);
  else
    perform pg_advisory_xact_lock_shared(hashtext('follows of ' || current_schema()), 0);
  end if;
end $$;
