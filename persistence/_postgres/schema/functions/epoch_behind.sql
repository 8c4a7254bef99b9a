-- The epoch after this one. No epoch is issued twice, even if the database lost the commit that issued one.
create or replace function epoch_behind(was bigint) returns bigint language sql stable
  as $$ select greatest(was + 1, d.floor) from deployment d $$;
