-- Write posts of any sender, outside of commits, and notify the owners in the same transaction.
create or replace function post_to_topics(me text, p_topic text[], p_hash bigint[], p_sender text[], p_id text[],
  p_body text[], p_brokered boolean)
returns table (i int, shard text, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare nth int[]; shards text[]; owners text[];
begin
  select array_agg(w.i), array_agg(w.shard), array_agg(w.owner) into nth, shards, owners
    from write_posts(p_topic, p_hash, p_sender, p_id, p_body,
      p_brokered or (select d.brokered from deployment d)) w;
  perform nudge_fanouts(me, array_agg(u.shard), array_agg(u.owner))
    from unnest(shards, owners) u(shard, owner)
    where u.owner is distinct from me and u.owner is not null having count(*) > 0;
  return query select u.i, u.shard, u.owner from unnest(nth, shards, owners) u(i, shard, owner);
end $$;
