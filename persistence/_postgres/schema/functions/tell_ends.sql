-- The name of `notify_ends` in the release before. No code of ours calls it.
create or replace function tell_ends(p_ended text[]) returns table (by text, waiter text)
language sql set search_path from current as $$
select * from notify_ends($1)
$$;
