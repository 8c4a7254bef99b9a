-- Where numbers of a life begin of which `was` was the last one known: at the instant of its start, in
-- microseconds, which no life before has reached, not even one that is forgotten. A clock that is behind
-- gives way.
create or replace function leap_from(was bigint, life timestamptz) returns bigint language sql immutable
  as $$ select case when at > was then at else was + 1000000000 end
    from (select (extract(epoch from life) * 1000000)::bigint as at) x $$;
