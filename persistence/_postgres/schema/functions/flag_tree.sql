-- Ask a run and its subtree to stop. Repeated, each time with a younger snapshot, until no new child is found: a
-- child is inserted under its parent's row lock, so a child that is not visible yet reads the flag. For runs of
-- sessions this also writes a fact.
create or replace function flag_tree(p_run text, p_reason text) returns text[]
language plpgsql set search_path from current as $$
declare tree text[] := '{}'; found text[]; flagged text[] := '{}'; agents text[]; runs text[];
begin
  loop
    with recursive t as (
      select r.run_id from runs r where r.run_id = p_run
      union select c.run_id from t
        cross join lateral (select r.run_id from runs r where r.parent = t.run_id offset 0) c)
      select coalesce(array_agg(t.run_id), '{}') into found from t;
    exit when found <@ tree;
    tree := found;
    perform 1 from runs r where r.run_id = any(tree) order by r.run_id for no key update;
    with changed as (
      update runs r set cancel_requested = p_reason
        where r.run_id = any(tree) and is_open(r.status) and r.cancel_requested is null
        returning r.run_id)
      select flagged || coalesce(array_agg(c.run_id), '{}') into flagged from changed c;
  end loop;
  select array_agg(r.agent order by r.agent, f.run), array_agg(f.run order by r.agent, f.run)
    into agents, runs from unnest(flagged) f(run)
    cross join lateral (select n.agent from runs n where n.run_id = f.run offset 0) r
    cross join lateral (select n.created_at from sessions n where n.agent = r.agent offset 0) s
    where s.created_at is not null;
  if agents is not null then
    perform write_facts(agents, runs, array_fill('cancelling'::text, array[cardinality(runs)]),
      array_fill(0, array[cardinality(runs)]), array_fill(''::text, array[cardinality(runs)]));
  end if;
  return tree;
end $$;
