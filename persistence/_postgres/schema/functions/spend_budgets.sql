-- Count spawns and usage of commits against their trees' budgets, in the order of the commits. Returns what exceeds a
-- budget; such a commit counts nothing. Spawns of it that would fit are not returned.
create or replace function spend_budgets(p_relations json, r_run text[], p_bad int[], p_ended text[])
returns table (t int, place text, reason text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  x record; a budgets; roots text[]; n int; places int;
  spawns json := p_relations -> 'spawns'; spends json := p_relations -> 'spends';
  s_commit int[]; s_run text[]; s_place text[];
begin
  if spawns is null and spends is null then return; end if;
  -- Parsed once, since it contains the first messages of all children.
  select array_agg(s.t order by s.ord), array_agg(s.run order by s.ord), array_agg(s.place order by s.ord)
    into s_commit, s_run, s_place
    from rows from (json_to_recordset(spawns) as (t int, run text, place text))
      with ordinality s(t, run, place, ord)
    where s.t <> all(p_bad);
  select array_agg(distinct coalesce(r.root, r_run[m.t])) into roots from (
    select s.t from unnest(s_commit) s(t)
    union select d.t from json_to_recordset(spends) as d(t int)) m
    left join lateral (select r.root from runs r where r.run_id = r_run[m.t] offset 0) r on true
    where m.t <> all(p_bad);
  if roots is null then return; end if;
  insert into budgets (root, max_runs, max_concurrent, max_tokens, max_cost_usd, max_turns)
    select u.root, coalesce((r.supervision -> 'spawn_budget' ->> 'max_runs')::int, 50),
        (r.supervision -> 'spawn_budget' ->> 'max_concurrent')::int,
        (r.supervision -> 'execution_budget' ->> 'max_tokens')::bigint,
        r.supervision -> 'execution_budget' ->> 'max_cost_usd',
        (r.supervision -> 'execution_budget' ->> 'max_turns')::int
      from unnest(roots) u(root)
      left join lateral (select r.supervision from runs r where r.run_id = u.root offset 0) r on true
      order by u.root on conflict do nothing;
  roots := roots || array(select case when r.parent is not null then r.root end from runs r
    where r.run_id = any(p_ended));
  perform 1 from budgets b where b.root = any(roots) order by b.root for no key update;
  for x in
    select m.t, coalesce(r.root, r_run[m.t]) as root, coalesce(m.spawns, '{}') as spawns,
        m.tokens, m.cost_usd, m.turns, m.place
      from (
        select coalesce(s.t, d.t) as t, s.spawns, d.tokens, d.cost_usd, d.turns, d.place
          from (select s.t, array_agg(s.place order by s.ord) as spawns
            from unnest(s_commit, s_run, s_place) with ordinality s(t, run, place, ord)
            where not exists (select 1 from runs r where r.run_id = s.run offset 0) group by s.t) s
          full join json_to_recordset(spends)
            as d(t int, tokens bigint, cost_usd double precision, turns int, place text)
            on d.t = s.t) m
      left join lateral (select r.root from runs r where r.run_id = r_run[m.t] offset 0) r on true
      where m.t <> all(p_bad) order by m.t
  loop
    select * into a from budgets b where b.root = x.root;
    n := cardinality(x.spawns);
    places := greatest(least(a.max_runs - a.runs, a.max_concurrent - a.open), 0);
    t := x.t;
    if n > places then
      reason := case when a.max_concurrent - a.open < a.max_runs - a.runs
        then 'max_concurrent ' || a.max_concurrent else 'max_runs ' || a.max_runs end;
      for i in places + 1 .. n loop
        place := x.spawns[i];
        return next;
      end loop;
      continue;
    end if;
    reason := case when x.turns is null or x.turns = 0 then null
      when a.turns + x.turns > a.max_turns then 'max_turns ' || a.max_turns
      when a.tokens >= a.max_tokens then 'max_tokens ' || a.max_tokens
      when a.cost_usd >= a.max_cost_usd::double precision then 'max_cost_usd ' || a.max_cost_usd end;
    if reason is not null then
      place := x.place;
      return next;
      continue;
    end if;
    update budgets b set runs = b.runs + n, open = b.open + n,
        tokens = b.tokens + coalesce(x.tokens, 0), cost_usd = b.cost_usd + coalesce(x.cost_usd, 0),
        turns = b.turns + coalesce(x.turns, 0)
      where b.root = x.root;
  end loop;
end $$;
