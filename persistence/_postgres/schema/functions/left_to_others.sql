-- Return what other hosts can serve, as types and shards of single agents, if this host cannot serve; otherwise
-- nothing.
create or replace function left_to_others(me text, at timestamptz, p_unable text)
returns table (type text, shard text) language sql stable as $$
  select unnest(h.types), unnest(h.shards) from hosts h
    where p_unable <> 'unsure' and h.incarnation <> me and h.expires_at >= at and h.unable is null
$$;
