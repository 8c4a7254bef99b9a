-- Return wait cycles of any age, in the format of `young_cycles`. The waits are read in one scan and not by key. Only
-- waits that can be part of a cycle are followed: the run waits for an agent that has a waiting run, and another run
-- waits for its agent. A run that waits for a sleeping child cannot be in a cycle; following each such wait took 12 s
-- per take-over with 100,000 of them.
create or replace function all_cycles(p_shards text[])
returns table (places text[], run_ids text[], agents text[])
language plpgsql stable set search_path from current
  set enable_seqscan = on set enable_hashjoin = on set enable_nestloop = off set jit = off as $$
#variable_conflict use_column
declare
  found text[];
begin
  with must as materialized (
    select w.run_id, r.agent as waiter, coalesce(w.agent, t.agent) as awaited
      from waits w
      join runs r on r.run_id = w.run_id
      left join runs t on t.run_id = w.target_run
      where w.run_id in (select v.run_id from waits v where v.must))
  select coalesce(array_agg(distinct m.run_id), '{}') into found from must m
    where m.awaited in (select n.waiter from must n) and m.waiter in (select n.awaited from must n);
  return query select c.places, c.run_ids, c.agents from cycles_among(found, p_shards) c;
end $$;
