-- The name of `dead_letter_outbox` in the release before, for its hosts that still run. No code of ours calls it.
create or replace function bury_outbox(b_sender text, b_target text, b_n bigint, b_problem text) returns void
language sql set search_path from current as $$
select dead_letter_outbox($1, $2, $3, $4)
$$;
