-- Return the next rows of these shards' outboxes, oldest first, and how far their targets' shards have read the
-- broker. Reads at most one page per shard. Rows in the shard of a topic are for observers and not for an inbox.
create or replace function outbox_page(p_shard text[], p_after bigint, p_limit int)
returns table (n bigint, body json, dead text, target_read bigint)
language plpgsql stable set search_path from current set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off as $$
begin
  return query
    select o.n, o.body, o.dead, coalesce(c.sequence, 0)
      from (select p.shard, p.n from unnest(p_shard) s(shard)
        cross join lateral (select o.shard, o.n from outbox o
          where o.shard = s.shard and o.n > p_after order by o.n limit p_limit) p
        order by p.n limit p_limit) page
      cross join lateral (select * from outbox o
        where o.shard = page.shard and o.n = page.n offset 0) o
      left join types y on y.type = agent_type(o.target)
      left join cursors c on c.shard = shard_of(o.target, o.target_hash, y.mode, y.partitions)
        and c.stream_epoch = (select present_stream_epoch()) and o.dead is null
        and page.shard <> 'u:~topic' and page.shard not like 'p:~topic:%'
      order by o.n;
end $$;
