-- Return wait cycles that have a wait younger than `p_younger`, if the run with the greatest id of the cycle is in
-- these shards. Runs are joined last.
create or replace function young_cycles(p_shards text[], p_younger interval)
returns table (places text[], run_ids text[], agents text[])
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
begin
  if p_younger > interval '1 day' then
    return query select c.places, c.run_ids, c.agents from all_cycles(p_shards) c;
    return;
  end if;
  return query
    select c.places, c.run_ids, c.agents
      from (select distinct w.run_id from waits w
        where w.must and w.changed_at > (select present() - p_younger)) y
      cross join lateral cycles_of(y.run_id) c
      cross join lateral (select * from runs r
        where r.run_id = (select max(u.run_id) from unnest(c.run_ids) u(run_id)) offset 0) g
      where g.shard = any(p_shards);
end $$;
