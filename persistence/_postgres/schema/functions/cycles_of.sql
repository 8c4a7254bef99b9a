-- Return the paths from a run's waits back to the run itself, each as its runs and the position of the wait in each
-- of them. At most 1,000 runs are read per wait.
create or replace function cycles_of(p_run text) returns table (places text[], run_ids text[], agents text[])
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
declare
  x record; y record; n int; m int; around text[] := runs_around(p_run);
  run text[]; came int[]; place text[]; who text[]; me text;
begin
  if around is null then return; end if;
  for x in select * from waits_for(p_run) w where w.run_id = any(around) loop
    run := array[x.run_id]; came := array[0]; place := array[x.place]; who := array[x.agent];
    n := 1;
    while n <= least(cardinality(run), 1000) loop
      if run[n] = p_run then
        me := who[n];
        places := '{}'; run_ids := '{}'; agents := '{}';
        m := n;
        while m > 0 loop
          places := place[m] || places;
          run_ids := case when came[m] = 0 then p_run else run[came[m]] end || run_ids;
          agents := case when came[m] = 0 then me else who[came[m]] end || agents;
          m := came[m];
        end loop;
        return next;
        exit;
      end if;
      for y in select * from waits_for(run[n]) w where w.run_id = any(around) loop
        if y.run_id <> all(run) then
          run := run || y.run_id; came := came || n; place := place || y.place;
          who := who || y.agent;
        end if;
      end loop;
      n := n + 1;
    end loop;
  end loop;
end $$;
