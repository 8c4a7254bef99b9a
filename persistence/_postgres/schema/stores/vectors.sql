-- Documents with embeddings, separate per tenant and collection. One row per collection has the length of its
-- embeddings; the writer of the first document inserts it, in the statement that writes the documents.
-- Embeddings are pgvector's `vector` if the database has the extension or the user may create it, otherwise `real[]`.
-- Only the column's type and the two functions at the end differ. Their bodies are parsed at creation, so the
-- extension may be in any schema. Tables keep the type that they were created with.
-- A search without an index reads every embedding of its collection. So embeddings stay in their rows, with the
-- metadata; contents, which only hits need, are stored outside of rows of more than 2 KB.

do $$
declare home text;
begin
  if not exists (select from pg_extension e where e.extname = 'vector') then
    begin
      create extension vector schema public;
    exception when insufficient_privilege or undefined_file or feature_not_supported or invalid_schema_name then
      null;
    end;
  end if;
  select n.nspname into home from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector' and has_schema_privilege(n.oid, 'usage');
  if home is not null then
    perform set_config('search_path', format('%I, %I', current_schema(), home), true);
  end if;
end $$;

create table vector_collections (
  tenant text collate "C" not null,
  collection text collate "C" not null,
  dimensions int not null,
  primary key (tenant, collection)
);

-- `metadata` is returned as it was given, `filterable` is compared: jsonb would make 1e22 a whole number.
create table vector_documents (
  tenant text collate "C" not null,
  collection text collate "C" not null,
  id text collate "C" not null,
  content text not null,
  metadata json not null,
  filterable jsonb not null generated always as (metadata::jsonb) stored,
  primary key (tenant, collection, id)
);
alter table vector_documents alter column metadata set storage main, alter column filterable set storage main;

do $$
begin
  if to_regtype('vector') is not null then
    alter table vector_documents add column embedding vector not null;
    create function embedding_of(numbers real[]) returns vector
      language sql immutable strict parallel safe return numbers::vector;
    create function cosine_of(one vector, other vector) returns float8
      language sql immutable strict parallel safe return 1 - (one <=> other);
  else
    alter table vector_documents add column embedding real[] not null;
    create function embedding_of(numbers real[]) returns float8[]
      language sql immutable strict parallel safe return numbers::float8[];
    -- Embeddings have length 1. Two set-returning functions in one select list run in step, which is faster than one
    -- `unnest` of both.
    create function cosine_of(one real[], other float8[]) returns float8
      language sql immutable strict parallel safe
      return (select greatest(-1, least(1, sum(n.a * n.b)))
        from (select unnest(one) as a, unnest(other) as b) n);
  end if;
  alter table vector_documents alter column embedding set storage main;
end $$;
