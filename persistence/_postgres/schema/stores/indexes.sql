-- Indexes of large scopes that an operator has built or started to build: see `stores/indexes.py`. The row is written
-- before the index is started and deleted after it was dropped, so that a crash leaves no unknown index.

create table search_indexes (
  name text collate "C" primary key,
  on_table text not null,
  tenant text collate "C" not null,
  scope text collate "C" not null,
  dimensions int not null,
  unique (tenant, on_table, scope, dimensions)
);
