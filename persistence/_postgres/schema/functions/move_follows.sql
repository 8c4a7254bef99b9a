-- Move follows and fan-outs of these types to the present shards of their agents. `moving` are types that had other
-- shards before (and no fan-out); the other types were undeclared.
create or replace function move_follows(p_types text[], moving text[]) returns void
language plpgsql set search_path from current as $$
begin
  if cardinality(moving) = 0 and not exists (select 1 from follows f
      where f.shard like 'u:%' and f.shard in (select 'u:' || t from unnest(p_types) t)) then
    return;
  end if;
  perform lock_follows(true);
  update follows f set shard = shard_of(f.follower, f.hash, y.mode, y.partitions) from types y
    where f.shard like 'u:%' and f.shard = 'u:' || y.type and y.type = any(p_types);
  if cardinality(moving) > 0 then
    update follows f set shard = shard_of(f.follower, f.hash, y.mode, y.partitions) from types y
      where y.type = agent_type(f.follower) and y.type = any(moving);
  end if;
  with gone as (
    delete from fanouts x where x.shard in (select 'u:' || t from unnest(p_types) t)
      returning x.shard, x.seq, x.topic, x.after),
  placed as (
    insert into fanouts (shard, seq, topic, after)
      select distinct f.shard, g.seq, g.topic, g.after from gone g
        join follows f on f.topic = g.topic and agent_type(f.follower) = substr(g.shard, 3)
      returning seq)
  update posts p set shards_left = p.shards_left + c.more,
      body = case when p.shards_left + c.more > 0 then p.body end
    from (select n.seq, sum(n.more)::int as more from (
        select w.seq, 1 as more from placed w union all select g.seq, -1 from gone g) n
      group by n.seq) c
    where p.seq = c.seq;
end $$;
