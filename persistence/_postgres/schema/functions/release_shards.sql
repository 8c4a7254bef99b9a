-- Release shards that still have this owner and epoch. Returns their number. Shards of another owner were a dead
-- host's: see `claim_shards`.
create or replace function release_shards(me text, r_shard text[], r_owner text[], r_epoch bigint[])
returns int language plpgsql set search_path from current as $$
declare given int;
begin
  perform 1 from shards s where s.shard = any(r_shard) order by s.shard for no key update;
  update shards s set owner = null, free_since = present(),
      broken_at = case when r.owner <> me then next_arrival() end
    from unnest(r_shard, r_owner, r_epoch) r(shard, owner, epoch)
    where s.shard = r.shard and s.owner is not distinct from r.owner and s.epoch = r.epoch;
  get diagnostics given = row_count;
  if given > 0 then
    -- A host that released all its shards is shutting down: its share goes to the others until it claims again. A
    -- host that is claiming now has its row locked and is skipped; waiting for that lock could deadlock.
    update hosts h set types = '{}', shards = '{}' where h.incarnation in (
      select l.incarnation from hosts l where l.incarnation = any(r_owner)
        and not exists (select 1 from shards s where s.owner = l.incarnation)
        for no key update skip locked);
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return given;
end $$;
