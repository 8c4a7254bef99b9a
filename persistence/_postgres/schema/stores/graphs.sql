-- Entities and the relationships between them, separate per tenant. A relationship is deleted with either of its
-- ends. Properties are returned as they were given.

create table graph_entities (
  tenant text collate "C" not null,
  id text collate "C" not null,
  type text collate "C" not null,
  properties json not null,
  primary key (tenant, id)
);

create table graph_relationships (
  tenant text collate "C" not null,
  id text collate "C" not null,
  type text collate "C" not null,
  source_id text collate "C" not null,
  target_id text collate "C" not null,
  properties json not null,
  primary key (tenant, id),
  foreign key (tenant, source_id) references graph_entities on delete cascade,
  foreign key (tenant, target_id) references graph_entities on delete cascade
);
create index graph_relationships_of_source on graph_relationships (tenant, source_id, type);
create index graph_relationships_of_target on graph_relationships (tenant, target_id, type);

-- Return relationships that touch entities of a level, each with its other end; two rows if both ends are in the
-- level. At most `most` by their source, and as many by their target.
create function graph_edges_at(of_tenant text, level text[], only_types text[], most int)
returns table (id text, other text)
language plpgsql stable set search_path from current set enable_seqscan = off as $$
begin
  if only_types is null then
    return query
      (select r.id, r.target_id from graph_relationships r
        where r.tenant = of_tenant and r.source_id = any(level) limit most)
      union all
      (select r.id, r.source_id from graph_relationships r
        where r.tenant = of_tenant and r.target_id = any(level) limit most);
  else
    return query
      (select r.id, r.target_id from graph_relationships r
        where r.tenant = of_tenant and r.source_id = any(level) and r.type = any(only_types) limit most)
      union all
      (select r.id, r.source_id from graph_relationships r
        where r.tenant = of_tenant and r.target_id = any(level) and r.type = any(only_types) limit most);
  end if;
end $$;

-- Return the part of a graph around an entity, level by level: entities, whose ends are null, then relationships. If
-- it has more than `most` relationships, return one row of distance -1. A level is read only up to that limit, so an
-- entity with many more relationships costs no more. All levels are read in the snapshot of the call.
create function graph_neighbors(of_tenant text, start text, depth int, only_types text[], most int)
returns table (distance int, id text, type text, source_id text, target_id text, properties json)
language plpgsql stable set search_path from current set enable_seqscan = off as $$
declare
  reached text[] := array(
    select e.id from graph_entities e where e.tenant = of_tenant and e.id = start);
  reached_at int[] := array_fill(0, array[cardinality(reached)]);
  walked text[] := '{}';
  walked_at int[] := '{}';
  level text[] := reached;
  found text[];
begin
  for away in 0 .. depth - 1 loop
    exit when cardinality(level) = 0;
    with edges as materialized (
      select t.id, t.other from graph_edges_at(of_tenant, level, only_types, most + 1 + cardinality(walked)) t)
    select array(select t.id from edges t except select w.id from unnest(walked) w(id)),
        array(select t.other from edges t except select r.id from unnest(reached) r(id))
      into found, level;
    if cardinality(walked) + cardinality(found) > most then
      return query select -1, start, null::text, null::text, null::text, null::json;
      return;
    end if;
    walked := walked || found;
    walked_at := walked_at || array_fill(away, array[cardinality(found)]);
    reached := reached || level;
    reached_at := reached_at || array_fill(away + 1, array[cardinality(level)]);
  end loop;
  return query
    select u.away, e.id, e.type, null::text, null::text, e.properties
      from unnest(reached, reached_at) u(id, away) cross join lateral (
        select o.* from graph_entities o where o.tenant = of_tenant and o.id = u.id offset 0) e
      order by u.away, e.id;
  return query
    select u.away, r.id, r.type, r.source_id, r.target_id, r.properties
      from unnest(walked, walked_at) u(id, away) cross join lateral (
        select o.* from graph_relationships o where o.tenant = of_tenant and o.id = u.id offset 0) r
      order by u.away, r.id;
end $$;
