-- Turns after a cut that windows show otherwise, by id: with other content, or, for null, not at all. Hosts of the
-- release before show these turns as they are.
-- A column without a rewrite.

alter table transcripts add column if not exists cut_changes json;
