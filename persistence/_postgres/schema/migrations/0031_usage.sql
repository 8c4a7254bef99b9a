-- What models' answers used and cost, summed: a row for each agent, model and day (UTC), written by the commits
-- that record the answers. An agent is serial, so no two commits wait for each other's row. Sums are numeric:
-- exact in any order, and never too large. A new table only: takes no lock that anybody holds; hosts of the
-- release before do not count their answers.

create table usage_totals (
  tenant text collate "C" not null,
  agent text collate "C" not null,
  model text collate "C" not null,
  day date not null,
  calls bigint not null,
  input numeric not null,
  output numeric not null,
  cached numeric not null,
  cache_written numeric not null,
  cost_usd numeric not null,
  unpriced bigint not null,
  primary key (tenant, agent, model, day)
) with (fillfactor = 70);
