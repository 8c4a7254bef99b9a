-- Delete, of each kind at most `most` rows: tombstones of runs, dead letters whose run cannot be redriven any more
-- and ids of messages, all older than `older` and than 8 days; marks of blocked hosts; artifacts without pins, after
-- a day. Also move ids of done messages from the inbox to `message_ids`. Without `older` only the last three are
-- done. Returns the number of rows.
-- The oldest rows are found by their keys: a cached plan assumes that any limit reads a tenth of the table.
create or replace function forget_old(older interval, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare
  this timestamptz := present(); before timestamptz := this - greatest(older, interval '8 days');
  ids text[]; taken int; n int;
begin
  with gone as (
    delete from inbox i where i.ctid = any(array(
        select o.ctid from inbox o where o.state = 'd' and o.received_at < this - interval '1 hour'
          order by o.received_at limit most for update skip locked))
      returning i.agent, i.sender, i.message_id, i.run_id)
  insert into message_ids (key, run_id, at)
    select message_key(g.agent, g.sender, g.message_id), g.run_id, this from gone g
    on conflict do nothing;
  get diagnostics taken = row_count;
  -- A run with marks older than a week has made progress since: see `give_up_blocked`.
  delete from blockings b where b.run_id = any(array(
    select o.run_id from blockings o where o.at < this - interval '7 days'
      limit most for update skip locked));
  get diagnostics n = row_count;
  taken := taken + n + collect_artifacts(interval '1 day', most);
  if older is null then return taken; end if;
  ids := array(select r.run_id from runs r where r.swept and r.ended_at < before
    order by r.ended_at limit most for update skip locked);
  -- When a plan is made for an empty `ids`, the planner takes the condition to imply every partial index.
  if cardinality(ids) > 0 then
    taken := taken + drop_runs(ids);
  end if;
  -- Dead letters are numbered in the order of their time.
  delete from dead_letters d where d.id = any(array(
    select l.id from dead_letters l
      where l.id = any(array(select o.id from dead_letters o order by o.id limit most)) and l.at < before
        and not exists (select 1 from runs r where r.run_id = l.run_id and not r.swept offset 0)
      order by l.id for update skip locked));
  get diagnostics n = row_count;
  taken := taken + n;
  -- The id of a run's message is kept as long as the run's row: without it a repeated message would start the run
  -- again.
  delete from message_ids k where k.key = any(array(
    select l.key from message_ids l
      where l.key = any(array(
          select o.key from message_ids o where o.at < before order by o.at limit most))
        and not exists (select 1 from runs r where r.run_id = l.run_id offset 0)
      for update skip locked));
  get diagnostics n = row_count;
  return taken + n;
end $$;
