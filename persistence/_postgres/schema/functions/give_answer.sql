-- `give_answers` for one answer: called by hosts of the previous release.
create or replace function give_answer(me text, p_run text, p_key text, p_status text, p_result text,
  p_error text, p_by text, p_last int)
returns table (agent text, fresh boolean, same boolean)
language sql set search_path from current as $$
  select a.agent, a.fresh, a.same from give_answers(me, array[p_run], array[p_key], array[p_status],
    array[p_result], array[p_error], array[p_by], array[p_last]) a
$$;
