-- Return the runs that the completion of these runs affects: parents, runs that joined or asked them, and children
-- that are asked to stop or get another parent.
create or replace function concerned_by_ends(p_ended text[], r_run text[], r_orphans text[], b_agent text[],
  b_sender text[], b_id text[])
returns text[] language plpgsql stable set search_path from current as $$
begin
  return (
    with recursive below as (
      select c.run_id, t.orphans <> 'permanent' as deeper
        from unnest(r_run, r_orphans) t(run, orphans)
        cross join lateral (select r.run_id, r.ended_at from runs r where r.parent = t.run offset 0) c
        where t.orphans is not null and t.run = any(p_ended) and c.ended_at is null
      union
      select c.run_id, true from below b
        cross join lateral (select r.run_id from runs r where r.parent = b.run_id offset 0) c
        where b.deeper
    )
    select coalesce(array_remove(array_agg(distinct x.run_id), null), '{}') from (
      select r.parent as run_id from runs r where r.run_id = any(p_ended)
      union all
      select w.run_id from waits w where w.target_run = any(p_ended)
      union all
      select asker_of(i.body) from inbox i where i.run_id = any(p_ended) and i.state = 'b'
      union all
      select asker_of(i.body) from unnest(b_agent, b_sender, b_id) b(agent, sender, id)
        cross join lateral (select n.body from inbox n
          where n.agent = b.agent and n.sender = b.sender and n.message_id = b.id offset 0) i
      union all
      select b.run_id from below b) x);
end $$;
