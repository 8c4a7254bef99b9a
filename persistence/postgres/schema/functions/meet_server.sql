-- Return which life of the server this is. The first who meets another one has all numbers leap: it may
-- be behind the one before, and hosts remember what that one gave out. Every connection that writes
-- begins with this. By the owner of the tables: who only uses them may not set sequences.
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
