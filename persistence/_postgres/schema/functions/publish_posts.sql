-- Write posts; returns the shards that have followers of them, with their owners.
create or replace function publish_posts(p_topic text[], p_hash bigint[], p_sender text[], p_id text[],
  p_body text[], p_brokered boolean)
returns table (shard text, owner text) language sql set search_path from current as $$
  select distinct w.shard, w.owner
    from write_posts(p_topic, p_hash, p_sender, p_id, p_body, p_brokered) w where w.shard is not null
$$;
