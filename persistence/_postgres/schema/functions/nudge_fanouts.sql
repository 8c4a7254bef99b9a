-- Notify the owners (other than `me`) of shards that there are posts for their followers. The shard takes the field
-- that has the run in other notifications.
create or replace function nudge_fanouts(me text, shards text[], owners text[]) returns void
language sql set search_path from current as $$
  select nudge_owners(me, owners, array_fill('fanout'::text, array[cardinality(owners)]),
      array_fill(null::text, array[cardinality(owners)]), shards) where cardinality(owners) > 0
$$;
