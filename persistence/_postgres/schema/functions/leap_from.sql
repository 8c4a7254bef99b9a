-- The first number of a new database incarnation after `was`, the last one known: the incarnation's start time in
-- microseconds, which no earlier incarnation has reached, even if its last commits were lost. If the clock is behind
-- `was`, the number is `was` plus 10^9.
create or replace function leap_from(was bigint, life timestamptz) returns bigint language sql immutable
  as $$ select case when at > was then at else was + 1000000000 end
    from (select (extract(epoch from life) * 1000000)::bigint as at) x $$;
