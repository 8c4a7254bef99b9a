-- Answer the open waits for an event of the first `p_limit` runs after `p_after`, and notify their owners. Returns
-- these runs, by id. Waits that already have an answer are skipped. Runs are locked in id order, as in `flag_tree`,
-- so a wait that ends in the meantime is over.
create or replace function emit_event(me text, p_event text, p_result text, p_limit int, p_after text default '')
returns table (run text, agent text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare waiting text[]; answered text[];
begin
  select array_agg(w.run_id) into waiting from (
    select distinct w.run_id from waits w
      left join lateral (select c.child from completions c
        where c.parent = w.run_id and c.child = w.key offset 0) c on true
      where w.kind = 'event' and w.request ->> 'event' = p_event and w.run_id > p_after and c.child is null
      order by w.run_id limit p_limit) w;
  perform 1 from runs r where r.run_id = any(waiting) order by r.run_id for no key update;
  with made as (
    insert into completions (parent, child, status, result, last_seq)
      select w.run_id, w.key, 'resumed', p_result::json, -1
        from unnest(waiting) g(run_id)
        cross join lateral (select w.run_id, w.key from waits w
          where w.run_id = g.run_id and w.kind = 'event' and w.request ->> 'event' = p_event offset 0) w
      on conflict do nothing returning parent)
    select array_agg(distinct m.parent) into answered from made m;
  perform nudge_owners(me, array_agg(s.owner), array_agg('signal'::text), array_agg(r.agent), array_agg(r.run_id))
    from runs r join shards s on s.shard = r.shard where r.run_id = any(answered) and is_open(r.status);
  return query select r.run_id, r.agent from runs r where r.run_id = any(answered) order by r.run_id;
end $$;
