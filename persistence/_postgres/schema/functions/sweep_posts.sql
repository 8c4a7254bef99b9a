-- Delete ends of follows that no post in delivery needs, and posts that every follower has and whose ids need not be
-- known any more. `before` is a variable, since `present()` in a condition would be called per row. Returns the
-- number of rows.
create or replace function sweep_posts(p_limit int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare taken int; more int; before timestamptz := present() - interval '8 days';
begin
  delete from follows f where f.ctid = any(array(
    select e.ctid from follows e
      where e.until is not null
        and not exists (select 1 from fanouts x
          where x.shard = e.shard and x.seq < e.until and x.topic = e.topic offset 0)
      order by e.until limit p_limit for update skip locked));
  get diagnostics taken = row_count;
  delete from posts p where p.ctid = any(array(
    select o.ctid from posts o
      where o.body is null and o.published_at < before
      order by o.published_at limit p_limit for update skip locked));
  get diagnostics more = row_count;
  return taken + more;
end $$;
