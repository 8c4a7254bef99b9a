-- Write answers that end waits of runs. A person's decision, or an answer to a graph's wait, is written only while
-- the run waits for it. Of several answers for one wait the first one is kept. A run that does not exist gets no row.
-- `same`: exactly this answer is stored.
create or replace function give_answers(me text, g_run text[], g_key text[], g_status text[], g_result text[],
  g_error text[], g_by text[], g_last int[])
returns table (i int, agent text, fresh boolean, same boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made bigint[];
begin
  perform 1 from runs r where r.run_id = any(g_run) order by r.run_id for no key update;
  with due as materialized (
    select distinct on (g.run, g.key) g.*
      from unnest(g_run, g_key, g_status, g_result, g_error, g_by, g_last)
        with ordinality g(run, key, status, result, error, by, last, ord)
      cross join lateral (select 1 from runs r where r.run_id = g.run offset 0) r
      where g.status not in ('approved', 'denied', 'resumed')
        or exists (select 1 from waits w where w.run_id = g.run and w.key = g.key offset 0)
      order by g.run, g.key, g.ord
  ), kept as (
    insert into completions (parent, child, status, result, error, run, last_seq)
      select d.run, d.key, d.status, d.result::json, d.error::json, d.by, d.last from due d
      on conflict do nothing returning parent, child)
  select coalesce(array_agg(d.ord), '{}') into made
    from due d join kept k on k.parent = d.run and k.child = d.key;
  perform nudge_owners(me, array_agg(s.owner), array_agg('signal'::text), array_agg(r.agent), array_agg(r.run_id))
    from unnest(g_run) with ordinality g(run, ord)
    cross join lateral (select * from runs r where r.run_id = g.run offset 0) r
    join shards s on s.shard = r.shard and s.owner is distinct from me
    where g.ord = any(made) and is_open(r.status);
  return query
    select g.ord::int, r.agent, g.ord = any(made),
        coalesce(c.status = g.status and c.result::text is not distinct from g.result
          and c.error::text is not distinct from g.error and c.run is not distinct from g.by, false)
      from unnest(g_run, g_key, g_status, g_result, g_error, g_by)
        with ordinality g(run, key, status, result, error, by, ord)
      cross join lateral (select r.agent from runs r where r.run_id = g.run offset 0) r
      left join lateral (select * from completions c
        where c.parent = g.run and c.child = g.key offset 0) c on true;
end $$;
