-- The present epoch of the mail stream.
create or replace function present_stream_epoch() returns bigint language sql stable
  as $$ select max(epoch) from streams $$;
