-- Write commits that only append entries. Returns a row for each refused commit and nothing for the others. The first
-- commit of a run is refused ('early') if an older message of the same sender waits.
create or replace function append_entries(
  f_shard text[], f_owner text[], f_epoch bigint[],
  r_run text[], r_fence int[], r_expected int[], r_attempt int[],
  e_commit int[], e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[],
  p_usage json default null)
returns table (turn int, outcome text, actual int, detail text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
  held bigint[]; bad int[] := '{}'; asleep int[] := '{}'; at timestamptz := clock_timestamp();
  x record;
begin
  select coalesce(array_agg(l.i), '{}') into held from (
    select f.i from unnest(f_shard, f_owner, f_epoch) with ordinality f(shard, owner, epoch, i)
      join shards s on s.shard = f.shard and s.owner is not distinct from f.owner and s.epoch = f.epoch
      order by s.shard for share of s) l;
  perform 1 from runs r where r.run_id = any(r_run) order by r.run_id for no key update;
  for x in
    select t.i, t.run, r.agent, r.arrival, t.attempt, t.expected, t.fence = any(held) as fenced,
        r.run_id is not null as known, r.shard = f_shard[t.fence] as ours,
        r.status, r.ended_at is not null as ended, coalesce(l.last, -1) as last
      from unnest(r_run, r_fence, r_expected, r_attempt)
        with ordinality t(run, fence, expected, attempt, i)
      left join lateral (select * from runs n where n.run_id = t.run offset 0) r on true
      left join lateral (select max(e.seq) as last from event_log e where e.run_id = t.run) l on true
      where t.fence <> all(held) or r.run_id is null or r.shard <> f_shard[t.fence]
        or r.status <> 'RUNNING' or coalesce(l.last, -1) <> t.expected or r.attempt <> t.attempt
  loop
    turn := x.i; actual := x.last; detail := x.status;
    outcome := case when not x.fenced then 'lease' when not x.known then 'unknown'
      when not x.ours then 'lease' when x.ended then 'ended'
      when x.last <> x.expected then 'conflict'
      when x.expected = -1 and waits_before(x.agent, x.arrival)
        and exists (select from overtaking(x.run)) then 'early' end;
    if outcome is null then asleep := asleep || x.i::int;
    else bad := bad || x.i::int; return next; end if;
  end loop;
  insert into event_log (run_id, seq, kind, position, payload, ts)
    select e.run, e.seq, e.kind, e.position, e.payload::json, at
      from unnest(e_commit, e_run, e_seq, e_kind, e_position, e_payload)
        e(t, run, seq, kind, position, payload)
      where e.t <> all(bad);
  if cardinality(asleep) > 0 then
    update runs r set status = 'RUNNING', attempt = t.attempt, wake = null, wake_at = null,
        parked = null, updated_at = at
      from (select u.attempt, n.ctid as place
        from unnest(r_run, r_attempt) with ordinality u(run, attempt, i)
        cross join lateral (select m.ctid from runs m where m.run_id = u.run offset 0) n
        where u.i = any(asleep)) t
      where r.ctid = t.place;
  end if;
  if p_usage is not null then
    perform add_usage(p_usage, bad, at);
  end if;
end $$;
