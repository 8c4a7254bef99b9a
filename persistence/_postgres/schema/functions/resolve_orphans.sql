-- Apply the orphan policy to the open children of ended runs. Returns the runs that are asked to stop, each with the
-- ended run.
create or replace function resolve_orphans(p_ended text[], r_run text[], r_orphans text[])
returns table (by text, orphan text) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  return query
    with recursive below as (
      select t.run as by, c.*
        from unnest(r_run, r_orphans) t(run, orphans)
        cross join lateral (select r.run_id, r.ctid as place, r.ended_at, r.cancel_requested from runs r
          where r.parent = t.run offset 0) c
        where t.orphans <> 'permanent' and t.run = any(p_ended) and c.ended_at is null
      union
      select b.by, c.* from below b
        cross join lateral (select r.run_id, r.ctid as place, r.ended_at, r.cancel_requested from runs r
          where r.parent = b.run_id offset 0) c
    ), flagged as (
      -- These rows are locked, so their ctids are valid.
      update runs r set cancel_requested = 'parent run ' || b.by || ' has ended'
        from below b where r.ctid = b.place and b.ended_at is null and b.cancel_requested is null
    ), adopted as (
      update runs c set parent = a.root
        from (
          select h.place, p.root from unnest(r_run, r_orphans) t(run, orphans)
            cross join lateral (select r.root from runs r where r.run_id = t.run offset 0) p
            cross join lateral (select r.ctid as place, r.ended_at from runs r
              where r.parent = t.run offset 0) h
            where t.orphans = 'permanent' and t.run = any(p_ended) and p.root <> t.run
              and h.ended_at is null
              and exists (select 1 from runs o where o.run_id = p.root offset 0) offset 0) a
        where c.ctid = a.place
    )
    select b.by, b.run_id from below b where b.ended_at is null;
end $$;
