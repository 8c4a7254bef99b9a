-- A copy of each tenant's graph for Apache AGE, which runs Cypher on it. The tables of `graphs.sql` remain the source
-- of entities and relationships: AGE has no foreign keys, and keeps neither the order of properties nor their
-- notation. Triggers change the copy in the statement that changes the rows, for every statement: an erase removes
-- rows from the copy, too. A copy is a graph of AGE, which is a schema of the database with the tables "Entity" and
-- "Relationship". It is created when its tenant first asks for it. This file also works in a database without AGE;
-- `make_cypher_graph` needs AGE.

do $$
begin
  -- AGE finds its own operators by the search path. PostgreSQL skips a schema that does not exist.
  perform set_config('search_path', format('%I, ag_catalog', current_schema()), true);
end $$;

create table cypher_graphs (
  tenant text collate "C" primary key,
  graph name not null
);

-- Return JSON as text that `agtype` reads: a whole number of more than 64 bits becomes a `numeric` of AGE.
create function cypher_text(value text) returns text
language sql immutable strict parallel safe return
  case when value !~ '[0-9]{19}' then value else (
    select string_agg(
        case when p.part[2]::numeric not between -9223372036854775808 and 9223372036854775807 then p.part[2] || '::numeric'
          else coalesce(p.part[1], p.part[2], p.part[3]) end, '' order by p.at)
      from regexp_matches(value, '("(?:[^"\\]|\\.)*")|(-?[0-9]{19,})(?![0-9.eE])|(.)', 'g') with ordinality p(part, at))
  end;

-- Return statements that copy rows of `source`, of the tenant $1. The row's own columns win over properties of the
-- same name.
create function cypher_copy_entities(source text, graph name) returns text
language sql immutable return format($sql$
  insert into %2$I."Entity" (properties)
    select agtype_concat(cypher_text(k.properties::text)::agtype, agtype_build_map('id', k.id, 'type', k.type))
      from %1$s k where k.tenant = $1
    on conflict (agtype_access_operator(variadic array[properties, '"id"'::agtype]))
      do update set properties = excluded.properties
$sql$, source, graph);

create function cypher_copy_relationships(source text, graph name) returns text
language sql immutable return format($sql$
  insert into %2$I."Relationship" (start_id, end_id, properties)
    select s.id, t.id, agtype_concat(cypher_text(k.properties::text)::agtype, agtype_build_map(
        'id', k.id, 'type', k.type, 'source_id', k.source_id, 'target_id', k.target_id))
      from %1$s k
      join %2$I."Entity" s
        on agtype_access_operator(variadic array[s.properties, '"id"'::agtype]) = to_json(k.source_id)::text::agtype
      join %2$I."Entity" t
        on agtype_access_operator(variadic array[t.properties, '"id"'::agtype]) = to_json(k.target_id)::text::agtype
      where k.tenant = $1
    on conflict (agtype_access_operator(variadic array[properties, '"id"'::agtype]))
      do update set start_id = excluded.start_id, end_id = excluded.end_id, properties = excluded.properties
$sql$, source, graph);

-- Return true if the graph can be used. Dropping the extension drops the columns and leaves the tables.
create function has_cypher_copy(graph name) returns boolean
language sql stable return (
  select count(*) = 2 from pg_attribute a
    where a.attrelid in (to_regclass(format('%I."Entity"', graph)), to_regclass(format('%I."Relationship"', graph)))
      and a.attname = 'properties' and not a.attisdropped);

-- Trigger: apply a change of rows to the copies of their tenants. A copy that was dropped is skipped; the next query
-- creates it again.
create function cypher_follow() returns trigger
language plpgsql set search_path from current as $$
declare one record; label text := case tg_table_name when 'graph_entities' then 'Entity' else 'Relationship' end;
begin
  for one in execute format(
    'select c.tenant, c.graph from cypher_graphs c where c.tenant in (select r.tenant from %I r)',
    case tg_op when 'DELETE' then 'gone' else 'kept' end)
  loop
    continue when not has_cypher_copy(one.graph);
    if tg_op = 'DELETE' then
      execute format($sql$
        delete from %I.%I v using gone g where g.tenant = $1
          and agtype_access_operator(variadic array[v.properties, '"id"'::agtype]) = to_json(g.id)::text::agtype
      $sql$, one.graph, label) using one.tenant;
    elsif label = 'Entity' then
      execute cypher_copy_entities('kept', one.graph) using one.tenant;
    else
      execute cypher_copy_relationships('kept', one.graph) using one.tenant;
    end if;
  end loop;
  return null;
end $$;

create trigger cypher_added after insert on graph_entities
  referencing new table as kept for each statement execute function cypher_follow();
create trigger cypher_changed after update on graph_entities
  referencing new table as kept for each statement execute function cypher_follow();
create trigger cypher_removed after delete on graph_entities
  referencing old table as gone for each statement execute function cypher_follow();
create trigger cypher_added after insert on graph_relationships
  referencing new table as kept for each statement execute function cypher_follow();
create trigger cypher_changed after update on graph_relationships
  referencing new table as kept for each statement execute function cypher_follow();
create trigger cypher_removed after delete on graph_relationships
  referencing old table as gone for each statement execute function cypher_follow();

-- Create the extension if the user may; raise CB005 with the remedy if this user cannot work with it.
create function need_age() returns void
language plpgsql set search_path from current as $$
declare make text := 'create extension age; grant usage on schema ag_catalog to ' || quote_ident(current_user);
begin
  if not exists (select from pg_available_extensions e where e.name = 'age') then
    raise exception using errcode = 'CB005', message = format(
      'the server of database %I has no Apache AGE: install it there, then let a superuser run `%s`', current_database(), make);
  end if;
  if not exists (select from pg_extension e where e.extname = 'age') then
    begin
      create extension age;
    exception when insufficient_privilege then
      raise exception using errcode = 'CB005', message = format(
        'database %I has no extension age: let a superuser run `%s` there', current_database(), make);
    end;
  end if;
  if not has_schema_privilege((select e.extnamespace from pg_extension e where e.extname = 'age'), 'usage') then
    raise exception using errcode = 'CB005', message = format(
      'user %I may not use the schema of Apache AGE: let a superuser run `grant usage on schema ag_catalog to %I` in database %I',
      current_user, current_user, current_database());
  end if;
  if not has_database_privilege(current_database(), 'create') then
    raise exception using errcode = 'CB005', message = format(
      'user %I may not make schemas, and a graph of Apache AGE is one: let the owner run `grant create on database %I to %I`',
      current_user, current_database(), current_user);
  end if;
end $$;

-- Create the copy of a tenant's graph unless it exists. The lock blocks writers of graphs in this schema in the
-- meantime: a transaction that is already writing would not see the copy, and its rows would be missing there.
create function make_cypher_graph(p_tenant text) returns void
language plpgsql set search_path from current as $$
declare
  -- A graph's name is a schema's name: unique in the database, and at most 63 bytes.
  made name := 'callboard_' || left(encode(sha256(convert_to(current_schema() || '/' || p_tenant, 'utf8')), 'hex'), 40);
  label text;
begin
  if exists (select from cypher_graphs c where c.tenant = p_tenant and c.graph = made and has_cypher_copy(made)) then
    return;
  end if;
  perform need_age();
  lock table graph_entities, graph_relationships in share row exclusive mode;
  if exists (select from cypher_graphs c where c.tenant = p_tenant and c.graph = made and has_cypher_copy(made)) then
    return;
  end if;
  if to_regnamespace(made::text) is not null then
    begin
      perform drop_graph(made, true);  -- left by a deleted schema of this name
    exception when invalid_schema_name then
      execute format('drop schema %I cascade', made);  -- left by a dropped extension
    end;
  end if;
  perform create_graph(made);
  execute format('select create_vlabel(%1$L, ''Entity''), create_elabel(%1$L, ''Relationship'')', made);
  foreach label in array array['Entity', 'Relationship'] loop
    execute format(
      'create unique index on %I.%I (agtype_access_operator(variadic array[properties, ''"id"''::agtype]))', made, label);
  end loop;
  execute format('create index on %I."Relationship" (end_id)', made);
  execute format('create index on %I."Entity" using gin (properties)', made);
  execute cypher_copy_entities('graph_entities', made) using p_tenant;
  execute format('analyze %I."Entity"', made);
  execute cypher_copy_relationships('graph_relationships', made) using p_tenant;
  execute format('analyze %I."Relationship"', made);
  insert into cypher_graphs (tenant, graph) values (p_tenant, made)
    on conflict (tenant) do update set graph = excluded.graph;
end $$;

-- Return at most `most` rows of a query, each column as text of `agtype`. The query is quoted with a random dollar
-- tag that it cannot contain. It is passed to AGE by `execute`; the first `execute` here loads the library, since
-- `load` needs a superuser. Nothing can be written: the transaction is read-only from here on. CB004: the tenant has
-- no graph yet; CB006: the query writes, or its rows are too large.
create function run_cypher(p_tenant text, p_query text, p_parameters text, columns int, most int) returns setof text[]
language plpgsql set search_path from current as $$
declare
  read_from name := (select c.graph from cypher_graphs c where c.tenant = p_tenant);
  tag text := 'q' || replace(gen_random_uuid()::text, '-', '');
  given text;
  found text[];
  size bigint := 0;
begin
  if read_from is null or not has_cypher_copy(read_from) then
    raise exception using errcode = 'CB004', message = 'there is no graph of this tenant yet';
  end if;
  execute 'select $1::agtype::text' into given using cypher_text(p_parameters);
  perform set_config('transaction_read_only', 'on', true);
  for found in execute format('select array[%s] from cypher(%L, $%s$ %s $%s$, $1) as (%s) limit %s',
    (select string_agg(format('agtype_out(c%s)::text', n), ', ' order by n) from generate_series(1, columns) n),
    read_from, tag, p_query, tag,
    (select string_agg(format('c%s agtype', n), ', ' order by n) from generate_series(1, columns) n), most) using given::agtype
  loop
    size := size + pg_column_size(found);
    if size > 16777216 then
      raise exception using errcode = 'CB006', message = 'its rows have more than 16 MiB: add LIMIT, or return less of each';
    end if;
    return next found;
  end loop;
exception when read_only_sql_transaction then
  raise exception using errcode = 'CB006', message = 'a query only reads';
end $$;
