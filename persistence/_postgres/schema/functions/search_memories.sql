-- Return the memories of a scope that match a query best by meaning and those that match best by words: `most` of
-- each, with their scores. Only versions that were valid at `p_as_of`; null: the present ones. Meaning uses the
-- scope's index if it is ready; otherwise, or if the index does not find enough matches, all memories of the scope
-- are compared. Statements that read a whole scope may run in parallel, so they call only parallel-safe functions.
-- Hits are read by id, one by one, whatever the table's statistics say.
create or replace function search_memories(
  p_tenant text, p_about text, p_query real[], p_words text[], p_letters int, p_as_of timestamptz, p_sources text[],
  p_filter jsonb, most int, p_closeness float8)
returns table (id text, key text, about text, text text, source text, run_id text, turn text, metadata json, version int,
  created_at timestamptz, updated_at timestamptz, valid_until timestamptz, meaning float8, wording float8)
language plpgsql stable set search_path from current as $$
#variable_conflict use_column
declare nearest text[];
begin
  if p_as_of is null and cardinality(p_query) > 0 then
    nearest := nearest_indexed('memories', p_tenant, p_about, p_query, p_filter, p_sources, most);
  end if;
  -- Containment is cheap and leaves few rows, but accepts values that contain more than the filter: these are
  -- compared.
  return query with
    asked as materialized (
      select memory_meaning(nullif(p_query, '{}')) as meaning,
        array(select plainto_tsquery('simple', w) from unnest(p_words) w) as queries,
        array(select w from unnest(p_words) w where length(w) >= p_letters) as spelled),
    scoped as not materialized (
      select m.* from memories m where m.tenant = p_tenant and m.about = p_about
        and case when p_as_of is null then m.valid_until is null
          else m.updated_at <= p_as_of and (m.valid_until is null or m.valid_until > p_as_of) end
        and (p_sources is null or m.source = any(p_sources))
        and (p_filter is null or m.filterable @> p_filter and not exists (
          select from jsonb_each(p_filter) f where m.filterable -> f.key is distinct from f.value))),
    near as (
      (select m.id, memory_nearness(m.embedding, (select a.meaning from asked a)) as score, m.updated_at
        from unnest(nearest) u(id) cross join lateral (
          select n.* from memories n where n.tenant = p_tenant and n.id = u.id offset 0) m
        order by score desc, m.updated_at desc, m.id limit most)
      union all
      (select s.id, memory_nearness(s.embedding, (select a.meaning from asked a)) as score, s.updated_at
        from scoped s
        where nearest is null and s.dimensions = cardinality(p_query) and s.dimensions > 0
        order by score desc, s.updated_at desc, s.id limit most)),
    counted as (
      select s.id, s.updated_at,
          (select count(*) from unnest(a.queries) q where s.words @@ q)::float8 / cardinality(a.queries) as share,
          coalesce((select max(memory_closeness(w, s.text)) from unnest(a.spelled) w), 0) as closest
        from scoped s cross join asked a where cardinality(a.queries) > 0),
    worded as (
      select c.id, c.updated_at,
          (10 * c.share + case when c.closest >= p_closeness then c.closest else 0 end) / 11 as score
        from counted c where c.share > 0 or c.closest >= p_closeness
        order by score desc, c.updated_at desc, c.id limit most)
    select m.id, m.key, m.about, m.text, m.source, m.run_id, m.turn, m.metadata, m.version, m.created_at,
        m.updated_at, m.valid_until, f.meaning, f.wording
      from (select id, n.score as meaning, w.score as wording from near n full join worded w using (id)) f
        cross join lateral (select n.* from memories n where n.tenant = p_tenant and n.id = f.id offset 0) m;
end $$;
