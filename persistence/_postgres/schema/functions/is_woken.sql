-- True if an event that a suspended run waits for has already arrived. The function has no search path of its own, so
-- it is inlined in its callers (35 µs per call otherwise).
create or replace function is_woken(r_run text, r_agent text, r_wake json) returns boolean
  language sql stable as $$
  select exists (select 1 from signals s where s.run_id = r_run and not s.consumed
      and s.name in (select json_array_elements_text(r_wake -> 'signals')))
    or (coalesce((r_wake ->> 'message')::boolean, false)
      and exists (select 1 from inbox i where i.agent = r_agent and i.body is not null
        and i.run_id is null))
    or exists (select 1 from completions c where c.parent = r_run and not c.consumed
      and c.child in (select json_array_elements_text(r_wake -> 'runs')))
$$;
