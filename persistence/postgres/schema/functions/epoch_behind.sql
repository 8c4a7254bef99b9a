-- The epoch behind this one: none is given twice, also when the one that was given is forgotten.
create or replace function epoch_behind(was bigint) returns bigint language sql stable
  as $$ select greatest(was + 1, d.floor) from deployment d $$;
