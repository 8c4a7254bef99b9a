-- Register what this host serves and claim the shards that it should own, including shards that are its own but
-- unknown to it (the answer to an earlier claim was lost). A host that serves nothing claims nothing. Candidates are
-- read without a lock, locked in key order, then compared again with what was read. `broken_at` is set for shards
-- whose owner before died: what arrived before that number may have been executing.
create or replace function claim_shards(me text, lease interval, p_types text[], p_shards text[],
  p_known text[], p_limit int, p_capacity int default 1000, p_brokered boolean default false)
returns table (shard text, epoch bigint, expires_at timestamptz, late boolean, broken_at bigint)
language plpgsql set search_path from current set lock_timeout = '1s' set enable_nestloop = off as $$
#variable_conflict use_column
declare
  at timestamptz := present(); until timestamptz;
  c_shard text[]; c_owner text[]; c_epoch bigint[]; c_late boolean[];
begin
  until := keep_alive(me, lease);
  update hosts h set types = p_types, shards = p_shards, capacity = p_capacity
    where h.incarnation = me
      and (h.types, h.shards, h.capacity) is distinct from (p_types, p_shards, p_capacity);
  if found and cardinality(p_types) + cardinality(p_shards) > 0 then
    perform same_kind_of_mail(me, p_brokered, at);
  end if;
  delete from hosts d where d.incarnation in (
    select h.incarnation from hosts h where h.expires_at < at - interval '1 day'
      and not exists (select 1 from shards s where s.owner = h.incarnation)
      for update skip locked);
  if cardinality(p_types) + cardinality(p_shards) = 0 then return; end if;
  select array_agg(c.shard), array_agg(c.owner), array_agg(c.epoch), array_agg(c.rank = 2)
    into c_shard, c_owner, c_epoch, c_late
    from (select * from shards_to_take(me, at, p_types, p_shards, p_known) t
      order by t.rank, t.shard limit p_limit) c;
  if c_shard is null then return; end if;
  perform 1 from shards s where s.shard = any(c_shard) order by s.shard for no key update;
  return query
    update shards s set owner = me, epoch = epoch_behind(s.epoch), free_since = case when c.late then at end,
        broken_at = case when c.owner <> me then next_arrival() else s.broken_at end
      from unnest(c_shard, c_owner, c_epoch, c_late) c(shard, owner, epoch, late)
      where s.shard = c.shard and s.owner is not distinct from c.owner and s.epoch = c.epoch
        and (c.owner is null or c.owner = me or not exists (
          select 1 from hosts h where h.incarnation = c.owner and h.expires_at >= present()))
      returning s.shard, s.epoch, until, c.late, s.broken_at;
end $$;
