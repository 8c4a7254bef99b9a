-- Write the changes of these commits' waits, since a run may have thousands: new or changed ones (waits) and ended
-- ones (gone). A host that does not know the stored waits sends all of them (waiting); waits that are not among them
-- are deleted. A new wait for a run that has already ended is answered at once, also if its answer was taken before:
-- a second join of a run is valid. Returns the runs that have an answer now.
create or replace function keep_waits(p_relations json, r_run text[], p_bad int[])
returns table (t int, waiter text) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  if p_relations -> 'waiting' is not null then
    delete from waits w
      where w.run_id = any(array(select r_run[g.t::int]
          from json_array_elements_text(p_relations -> 'waiting') g(t) where g.t::int <> all(p_bad)))
        and (w.run_id, w.position, w.key) not in (
          select r_run[n.t], n.position, n.key
            from json_to_recordset(p_relations -> 'waits') as n(t int, position text, key text));
  end if;
  if p_relations -> 'gone' is not null then
    delete from waits w where w.ctid = any(array(
      select v.ctid from json_to_recordset(p_relations -> 'gone') as g(t int, position text, key text)
        cross join lateral (select v.ctid from waits v
          where v.run_id = r_run[g.t] and v.position = g.position and v.key = g.key offset 0) v
        where g.t <> all(p_bad)));
  end if;
  if p_relations -> 'waits' is null then return; end if;
  return query
    with put as (
      insert into waits (run_id, position, key, kind, agent, target_run, must, request, expires_at)
        select r_run[n.t], n.position, n.key, n.kind, n.agent, n.target, n.must, n.request::json,
            n.expires_at
          from json_to_recordset(p_relations -> 'waits') as n(t int, position text, key text, kind text,
            agent text, target text, must boolean, request text, expires_at timestamptz)
          where n.t <> all(p_bad) and not exists (
            select 1 from (select v.must, v.expires_at, v.target_run from waits v
              where v.run_id = r_run[n.t] and v.position = n.position and v.key = n.key offset 0) v
              where v.must = n.must and v.expires_at is not distinct from n.expires_at
                and v.target_run is not distinct from n.target)
        on conflict (run_id, position, key) do update set kind = excluded.kind, agent = excluded.agent,
          target_run = excluded.target_run, must = excluded.must, request = excluded.request,
          expires_at = excluded.expires_at,
          changed_at = case when waits.must then waits.changed_at else excluded.changed_at end
        returning run_id, key, target_run),
    over as (
      select p.run_id, p.key, r.* from put p
        cross join lateral (select r.run_id as target, r.tenant, r.status, r.result, r.error,
            r.cancel_requested, r.ended_at from runs r where r.run_id = p.target_run offset 0) r
        where r.ended_at is not null),
    kept as (
      insert into completions (parent, child, status, result, error, run, last_seq)
        select distinct on (o.run_id, o.key) o.run_id, o.key, lower(o.status),
            case o.status when 'COMPLETED' then o.result end,
            end_error(o.status, o.error, o.cancel_requested), o.target,
            coalesce((select max(e.seq) from event_log e where e.run_id = o.target), -1)
          from over o
          cross join lateral (select w.tenant from runs w where w.run_id = o.run_id offset 0) w
          where w.tenant = o.tenant
          order by o.run_id, o.key
        on conflict (parent, child) do update set consumed = false where completions.consumed
        returning parent)
    select distinct array_position(r_run, k.parent), k.parent from kept k;
end $$;
