-- Return the documents of a collection that are nearest to a query, best first, each with the collection's
-- dimensions; one row without a document if none matches, and no row if there is no collection. Uses the collection's
-- indexes if they are ready; otherwise, or if they do not find enough matches, compares all of its documents.
create or replace function search_documents(p_tenant text, p_collection text, p_query real[], p_filter jsonb, most int)
returns table (dimensions int, id text, content text, metadata json, score float8)
language plpgsql stable set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare ids text[]; of_collection int;
begin
  select c.dimensions into of_collection from vector_collections c
    where c.tenant = p_tenant and c.collection = p_collection;
  if of_collection is null then
    return;
  end if;
  if of_collection <> cardinality(p_query) or most = 0 then
    dimensions := of_collection;
    return next;
    return;
  end if;
  ids := nearest_indexed('vector_documents', p_tenant, p_collection, p_query, p_filter, null, most);
  if ids is not null then
    return query select of_collection, d.id, d.content, d.metadata, d.score
      from (values (1)) one left join (unnest(ids) u(id) cross join lateral (
        select v.id, v.content, v.metadata, cosine_of(v.embedding, (select embedding_of(p_query))) as score
          from vector_documents v where v.tenant = p_tenant and v.collection = p_collection and v.id = u.id offset 0) d)
        on true
      order by d.score desc, d.id limit most;
    return;
  end if;
  -- Containment is cheap and leaves few rows, but accepts values that contain more than the filter: these are
  -- compared.
  return query select of_collection, d.id, d.content, d.metadata, d.score
    from (values (1)) one left join (
      select v.id, v.content, v.metadata, cosine_of(v.embedding, (select embedding_of(p_query))) as score
        from vector_documents v
        where v.tenant = p_tenant and v.collection = p_collection and (p_filter is null
          or v.filterable @> p_filter and not exists (
            select from jsonb_each(p_filter) f where v.filterable -> f.key is distinct from f.value))
        order by score desc, v.id limit most) d on true
    order by d.score desc, d.id;
end $$;
