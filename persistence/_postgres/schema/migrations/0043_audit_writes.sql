-- The id that the writer of an audit row made for it: a write that is sent again finds its row. It is null in rows of
-- hosts of the release before, which keep working.
-- A column without a rewrite, and an index of few rows: it reads the table once, and writes to it wait meanwhile.

alter table audit add column write_id text collate "C";
create unique index audit_by_write on audit (tenant, write_id) where write_id is not null;
