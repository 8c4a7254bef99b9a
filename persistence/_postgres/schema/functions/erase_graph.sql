-- Delete entities and relationships of a tenant; for a subject only those whose properties name it. An entity is
-- deleted when it has no more relationships: these are deleted at most `most` at a time. `p_step` is the position of
-- the scan: 'e' among entities, 'r' among relationships, after the id `p_after`; a null `step` means that the scan is
-- complete. `order by` names the intended index and sorts are off, so that the plan uses it whatever the table's
-- statistics say.
create or replace function erase_graph(p_tenant text, p_about text, p_step text, p_after text, most int)
returns table (entities int, relationships int, step text, after text)
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_column
declare ids text[]; places tid[]; last text;
begin
  entities := 0; relationships := 0; step := p_step; after := p_after;
  if to_regclass('graph_entities') is null then
    step := null;
  elsif p_about is null then
    delete from graph_relationships r where r.ctid = any(array(
      select n.ctid from graph_relationships n where n.tenant = p_tenant order by n.tenant, n.id limit most for update));
    get diagnostics relationships = row_count;
    if relationships < most then
      ids := array(select n.id from graph_entities n where n.tenant = p_tenant order by n.id limit most for update);
      delete from graph_entities e where e.tenant = p_tenant and e.id = any(ids);
      get diagnostics entities = row_count;
      step := case when entities = most then p_step end;
    end if;
  elsif p_step = 'e' then
    select array_agg(w.id) filter (where w.is_meant), max(w.id) into ids, last from (
      select p.*, count(*) filter (where p.is_meant) over (order by p.id) as nth from (
        select n.id, json_typeof(n.properties -> 'about') = 'string' and n.properties ->> 'about' = p_about as is_meant
          from graph_entities n where n.tenant = p_tenant and n.id > p_after order by n.id limit 10 * most) p) w
      where w.nth <= most;
    -- New relationships wait for these locks.
    perform 1 from graph_entities e where e.tenant = p_tenant and e.id = any(ids) order by e.id for update;
    delete from graph_relationships r where r.ctid = any(array(
      select o.place from unnest(ids) u(id) cross join lateral (
        (select n.ctid as place from graph_relationships n where n.tenant = p_tenant and n.source_id = u.id
          order by n.tenant, n.source_id, n.type limit most)
        union
        (select n.ctid from graph_relationships n where n.tenant = p_tenant and n.target_id = u.id
          order by n.tenant, n.target_id, n.type limit most)) o
        limit most));
    get diagnostics relationships = row_count;
    if relationships < most then
      delete from graph_entities e where e.tenant = p_tenant and e.id = any(ids);
      get diagnostics entities = row_count;
      if last is null then
        step := 'r'; after := '';
      else
        after := last;
      end if;
    end if;
  else
    select array_agg(w.place) filter (where w.is_meant), max(w.id) into places, last from (
      select p.*, count(*) filter (where p.is_meant) over (order by p.id) as nth from (
        select n.id, n.ctid as place,
            json_typeof(n.properties -> 'about') = 'string' and n.properties ->> 'about' = p_about as is_meant
          from graph_relationships n where n.tenant = p_tenant and n.id > p_after
          order by n.tenant, n.id limit 10 * most for update) p) w
      where w.nth <= most;
    delete from graph_relationships r where r.ctid = any(places);
    get diagnostics relationships = row_count;
    after := last;
    step := case when last is not null then 'r' end;
  end if;
  return next;
end $$;
