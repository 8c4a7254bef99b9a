-- Return ids of the rows of a scope that are nearest to a query, approximately in order of distance, found by the
-- scope's indexes: at least `most`, or all that match. Null if the scope has no index that is ready, or if the
-- indexes do not help: the caller then reads the scope.
-- If at most a twentieth of the scope matches the filter, all matching rows are found by the GIN index and compared.
-- If more match, or there is no such index, the HNSW index is searched until twice as many rows as requested match,
-- since its order is not exact, or until a twentieth of the scope was read: beyond that a read of the scope is
-- faster. The fewer rows match, the further away they are, and the more candidates a search has to keep
-- (`hnsw.ef_search`) to reach them. Other plans are switched off, so that the planner takes the index even if there
-- are few rows. The function is stable, so it has its caller's snapshot.
create or replace function nearest_indexed(
  p_table text, p_tenant text, p_scope text, p_query real[], p_filter jsonb, p_sources text[], most int)
returns text[]
language plpgsql stable set search_path from current set enable_seqscan = off as $$
declare
  index record; ids text[]; few int; matching text;
  by_filter boolean := coalesce(p_filter, '{}') <> '{}';
  is_whole boolean := not by_filter and p_sources is null;
begin
  select * into index from search_index(p_table, p_tenant, p_scope, cardinality(p_query)) i where i.is_ready;
  if not found or most = 0 then
    return null;
  end if;
  by_filter := by_filter and coalesce(index.can_filter, false);
  select greatest(100, least(20000, c.reltuples / 20)) into few from pg_class c where c.oid = to_regclass(index.name);
  matching := format($matching$
    select t.id, (t.embedding::%1$s) %2$s $1::%1$s as distance from %3$I t
      where %4$s and ($2::jsonb is null or t.filterable @> $2 and not exists (
          select from jsonb_each($2) f where t.filterable -> f.key is distinct from f.value))
        and %5$s
    $matching$, index.type, index.distance, p_table, index.scope, case p_table
      when 'memories' then '($3::text[] is null or t.source = any($3))' else '$3::text[] is null' end);
  if by_filter then
    perform set_config('enable_indexscan', 'off', true);
    execute format($exact$
      with matching as materialized (%s limit $5 + 1)
      select array(select m.id from matching m order by m.distance, m.id limit $4)
        where (select count(*) from matching) <= $5
      $exact$, matching)
      into ids using p_query, p_filter, p_sources, most, few;
    if ids is not null then
      return ids;
    end if;
  end if;
  perform set_config('enable_indexscan', 'on', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('hnsw.ef_search', greatest(case when is_whole then 200 when by_filter then 400 else 1000 end,
      least(1000, 2 * most))::text, true),
    set_config('hnsw.max_scan_tuples', greatest(1000, few)::text, true),
    set_config('hnsw.scan_mem_multiplier', '4', true);
  execute format('select array_agg(n.id) from (%s order by distance limit $4) n', matching)
    into ids using p_query, p_filter, p_sources, 2 * most;
  return case when cardinality(ids) >= case when is_whole then most else 2 * most end then ids end;
end $$;
