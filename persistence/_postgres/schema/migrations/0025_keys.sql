-- How a run ended that did not complete: FAILED or CANCELLED. What an index may know of `status`.
-- A column is added without a rewrite, and written for runs that ended so. Hosts of the release before keep working.

alter table runs add column ended_as text;
update runs set ended_as = status where status in ('FAILED', 'CANCELLED');
