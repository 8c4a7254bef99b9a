-- Delete documents of a tenant; for a subject only those whose metadata names it. These are found by reading the
-- tenant's documents in key order, ten times `most` per call, after the collection and id of the last batch.
create or replace function erase_documents(p_tenant text, p_about text, p_collection text, p_id text, most int)
returns table (documents int, collection text, id text, more boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare places tid[]; seen int;
begin
  documents := 0; more := false;
  if to_regclass('vector_documents') is null then
    return next;
    return;
  end if;
  if p_about is null then
    delete from vector_documents d where d.ctid = any(array(
      select n.ctid from vector_documents n where n.tenant = p_tenant limit most for update));
    get diagnostics documents = row_count;
    more := documents = most;
    if not more then
      delete from vector_collections c where c.ctid = any(array(
        select n.ctid from vector_collections n where n.tenant = p_tenant limit most for update));
      get diagnostics seen = row_count;
      more := seen = most;
    end if;
    return next;
    return;
  end if;
  with page as materialized (
    select n.collection, n.id, coalesce(n.filterable -> 'about' = to_jsonb(p_about), false) as is_meant
      from vector_documents n where n.tenant = p_tenant and (n.collection, n.id) > (p_collection, p_id)
      order by n.collection, n.id limit 10 * most),
  counted as (
    select p.*, count(*) filter (where p.is_meant) over (order by p.collection, p.id) as nth from page p),
  walked as materialized (select c.* from counted c where c.nth <= most),
  locked as (
    select o.place from walked w cross join lateral (
      select n.ctid as place from vector_documents n
        where n.tenant = p_tenant and n.collection = w.collection and n.id = w.id
          and n.filterable -> 'about' = to_jsonb(p_about) for update offset 0) o
      where w.is_meant)
  select count(*), (select w.collection from walked w order by w.collection desc, w.id desc limit 1),
      (select w.id from walked w order by w.collection desc, w.id desc limit 1),
      (select array_agg(l.place) from locked l)
    into seen, collection, id, places from walked w;
  delete from vector_documents d where d.ctid = any(places);
  get diagnostics documents = row_count;
  more := seen > 0;
  return next;
end $$;
