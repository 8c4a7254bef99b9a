-- Return the HNSW index of one scope (a collection of `vector_documents` or a subject of `memories`) and `filters`,
-- the GIN index of its metadata. No row if embeddings are arrays or too long for an index. The functions that build
-- the indexes and those that search both take the parts from here: the planner uses an index only if its predicate is
-- part of the search. `is_ready`, and `can_filter` for the second index, are null if there is no index, and false
-- while it is built or if a crash left it half built.
create or replace function search_index(p_table text, p_tenant text, p_scope text, p_dimensions int)
returns table (name text, filters text, scope text, type text, class text, distance text, is_ready boolean,
  can_filter boolean)
language plpgsql stable set search_path from current as $$
declare home text; kind text := case when p_dimensions <= 2000 then 'vector' when p_dimensions <= 4000 then 'halfvec' end;
begin
  name := p_table || '_hnsw_' || left(md5(concat_ws(E'\n', p_tenant, p_scope, p_dimensions)), 24);
  filters := replace(name, '_hnsw_', '_gin_');
  select x.indisvalid and x.indisready into is_ready from pg_index x where x.indexrelid = to_regclass(name);
  select x.indisvalid and x.indisready into can_filter from pg_index x where x.indexrelid = to_regclass(filters);
  select e.extnamespace::regnamespace::text into home from pg_extension e where e.extname = 'vector';
  if kind is null or home is null or not exists (
      select from pg_attribute a join pg_type t on t.oid = a.atttypid
        where a.attrelid = to_regclass(p_table) and a.attname = 'embedding' and t.typname = 'vector') then
    return;
  end if;
  scope := format(case p_table when 'vector_documents' then 'tenant = %L and collection = %L'
    else 'tenant = %L and about = %L and valid_until is null and dimensions = %s' end, p_tenant, p_scope, p_dimensions);
  type := format('%s.%s(%s)', home, kind, p_dimensions);
  class := format('%s.%s_cosine_ops', home, kind);
  distance := format('operator(%s.<=>)', home);
  return next;
end $$;
