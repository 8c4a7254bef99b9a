-- Start a new epoch of the mail stream of this name, once.
create or replace function next_stream_epoch(p_name text, p_known bigint, p_created timestamptz)
returns void language plpgsql set search_path from current as $$
begin
  perform lock_stream();
  update streams s set epoch = epoch_behind(present_stream_epoch()), created = p_created, purged = 1
    where s.name = p_name and s.epoch = p_known;
end $$;
