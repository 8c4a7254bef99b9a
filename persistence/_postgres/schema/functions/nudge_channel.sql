-- The notification channel of an owner of shards.
create or replace function nudge_channel(owner text) returns text language sql stable
  as $$ select current_schema() || ':' || left(md5(owner), 16) $$;
