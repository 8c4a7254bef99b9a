-- Ids of the rows of a scope that are nearest to a query, in about their order, by its index: at least `most`. Null, if the
-- scope has no index that is ready, or the index is no help: then who asks reads the scope. Twice as many as are asked for
-- are looked for, since their order is not exact. A filter has the search go on until it has so many that match, or has
-- looked at a twentieth of the scope: what is left then is found sooner without the index. Sorts are off, so that the
-- planner takes the index, however few rows there are. It is stable, so that it sees what its caller sees.
create or replace function nearest_indexed(
  p_table text, p_tenant text, p_scope text, p_query real[], p_filter jsonb, p_sources text[], most int)
returns text[]
language plpgsql stable set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  index record; ids text[]; rows_of_scope float8;
  is_whole boolean := coalesce(p_filter, '{}') = '{}' and p_sources is null;
begin
  select * into index from search_index(p_table, p_tenant, p_scope, cardinality(p_query)) i where i.is_ready;
  if not found or most = 0 then
    return null;
  end if;
  select c.reltuples into rows_of_scope from pg_class c where c.oid = to_regclass(index.name);
  perform set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('hnsw.ef_search', greatest(200, least(1000, 2 * most))::text, true),
    set_config('hnsw.max_scan_tuples', greatest(1000, least(20000, rows_of_scope / 20))::int::text, true),
    set_config('hnsw.scan_mem_multiplier', '4', true);
  execute format($search$
    select array_agg(n.id) from (
      select t.id from %1$I t where %2$s and ($2::jsonb is null or t.filterable @> $2 and not exists (
          select from jsonb_each($2) f where t.filterable -> f.key is distinct from f.value))
        and %3$s
        order by (t.embedding::%4$s) %5$s $1::%4$s limit $4) n
    $search$, p_table, index.scope, case p_table when 'memories' then '($3::text[] is null or t.source = any($3))'
      else '$3::text[] is null' end, index.type, index.distance)
    into ids using p_query, p_filter, p_sources, 2 * most;
  return case when cardinality(ids) >= case when is_whole then most else 2 * most end then ids end;
end $$;
