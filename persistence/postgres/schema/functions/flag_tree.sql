-- Flag a run and its subtree. Repeated, each time with a younger snapshot, until no child is new: a
-- child is inserted under its parent's row lock, so one that is not seen yet reads the flag.
create or replace function flag_tree(p_run text, p_reason text) returns text[]
language plpgsql set search_path from current as $$
declare tree text[] := '{}'; found text[];
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
    update runs r set cancel_requested = p_reason
      where r.run_id = any(tree) and is_open(r.status) and r.cancel_requested is null;
  end loop;
  return tree;
end $$;
