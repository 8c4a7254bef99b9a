-- The number of the next arrival when the owner of a shard died; null: the last owner gave it up in order.

alter table shards add column if not exists broken_at bigint;
