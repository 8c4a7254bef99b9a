-- What operators look at, as one host has counted it for all: counting reads every open run. One row.
-- A new table only: takes no lock that anybody holds, and hosts of the release before do not know it.

create table totals (
  one boolean primary key default true check (one),
  body json,
  counted_at timestamptz,
  took interval,
  counting_until timestamptz
) with (fillfactor = 50);
