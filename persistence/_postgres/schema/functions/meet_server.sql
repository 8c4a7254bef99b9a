-- Return the start time of this database incarnation. The first connection to a new incarnation moves all sequences
-- forward: the database may have lost its last commits, and hosts still use the numbers of those. Each connection
-- that writes calls this first. It runs as the owner of the tables, since other users may not set sequences.
create or replace function meet_server() returns timestamptz
language plpgsql security definer set search_path from current as $$
<<here>>
declare life timestamptz := pg_postmaster_start_time();
begin
  if exists (select 1 from deployment d where d.life = here.life) then return life; end if;
  update deployment d set life = here.life, floor = leap_from(d.floor, here.life)
    where d.life <> here.life;
  if found then
    perform setval(format('%I.%I', q.schemaname, q.sequencename),
        leap_from(coalesce(q.last_value, 0), here.life))
      from pg_sequences q where q.schemaname = current_schema();
  end if;
  return life;
end $$;
