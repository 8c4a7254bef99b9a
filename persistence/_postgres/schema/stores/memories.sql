-- Texts that agents keep, separate per tenant and scope. A slot is a key, or a text without a key: one row of it is
-- present, the others are its earlier versions. `put_memory` is the only writer. `shards` is the table of the runs in
-- this schema: where a fence is given, a host that lost its lease writes nothing.
-- Embeddings are pgvector's `vector` if the database has the extension or the user may create it, otherwise `real[]`.
-- Spellings are compared by pg_trgm; without it a word is searched for within others. Only a column's type and three
-- functions differ. Their bodies are parsed at creation, so the extensions may be in any schema.
-- A search reads all memories of its scope, and is exact, unless the scope has an index.

do $$
declare one text; homes text := quote_ident(current_schema()); home text;
begin
  foreach one in array array['vector', 'pg_trgm'] loop
    if not exists (select from pg_extension e where e.extname = one) then
      begin
        execute format('create extension %I schema public', one);
      exception when insufficient_privilege or undefined_file or feature_not_supported or invalid_schema_name then
        null;
      end;
    end if;
    select n.nspname into home from pg_extension e join pg_namespace n on n.oid = e.extnamespace
      where e.extname = one and has_schema_privilege(n.oid, 'usage');
    if home is not null then
      homes := homes || ', ' || quote_ident(home);
    end if;
    home := null;
  end loop;
  perform set_config('search_path', homes, true);
end $$;

-- `metadata` is returned as it was given, `filterable` is compared: jsonb would make 1e22 a whole number.
create table memories (
  tenant text collate "C" not null,
  about text collate "C" not null,
  slot text collate "C" not null,
  version int not null,
  id text collate "C" not null,
  key text,
  text text not null,
  source text not null,
  run_id text not null,
  turn text not null,
  metadata json not null,
  filterable jsonb not null generated always as (metadata::jsonb) stored,
  words tsvector not null generated always as (to_tsvector('simple', text)) stored,
  dimensions int not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  valid_until timestamptz,
  primary key (tenant, about, slot, version)
);
create unique index memories_ids on memories (tenant, id);
create unique index memories_present on memories (tenant, about, slot) where valid_until is null;

do $$
begin
  if to_regtype('vector') is not null then
    alter table memories add column embedding vector;
    create function memory_meaning(numbers real[]) returns vector
      language sql immutable strict parallel safe return numbers::vector;
    create function memory_nearness(one vector, other vector) returns float8
      language sql immutable strict parallel safe return 1 - (one <=> other);
  else
    alter table memories add column embedding real[];
    create function memory_meaning(numbers real[]) returns float8[]
      language sql immutable strict parallel safe return numbers::float8[];
    create function memory_nearness(one real[], other float8[]) returns float8
      language sql immutable strict parallel safe
      return (select greatest(-1, least(1, sum(n.a * n.b)))
        from (select unnest(one) as a, unnest(other) as b) n);
  end if;
  if to_regproc('word_similarity') is not null then
    create function memory_closeness(word text, body text) returns float8
      language sql immutable strict parallel safe return word_similarity(word, body);
  else
    create function memory_closeness(word text, body text) returns float8
      language sql immutable strict parallel safe
      return case when strpos(lower(body), word) > 0 then 1 else 0 end;
  end if;
end $$;

-- Return true if no fence is given, or if the shard has this owner and epoch; the lock keeps them until the
-- transaction ends.
create function memory_is_fenced(p_shard text, p_owner text, p_epoch bigint) returns boolean
language plpgsql set search_path from current as $$
begin
  if p_shard is null then
    return true;
  end if;
  perform 1 from shards s where s.shard = p_shard and s.owner = p_owner and s.epoch = p_epoch for share;
  return found;
end $$;

-- Lock a slot until the transaction ends: its writers are executed one after the other.
create function lock_memory(p_tenant text, p_about text, p_slot text) returns void
language sql set search_path from current as $$
  select pg_advisory_xact_lock(hashtext('memories of ' || current_schema()),
    hashtext(concat_ws(E'\n', p_tenant, p_about, p_slot)))
$$;

-- Return the slot of this name, otherwise that of the memory with this id.
create function memory_slot(p_tenant text, p_about text, p_slot text, p_id text) returns text
language sql stable set search_path from current as $$
  select coalesce(
    (select m.slot from memories m where m.tenant = p_tenant and m.about = p_about and m.slot = p_slot limit 1),
    (select m.slot from memories m where m.tenant = p_tenant and m.id = p_id and m.about = p_about))
$$;

-- Store a text unless it is stored. `outcome` is 'kept', 'lease' or 'conflict'; the row is the one that holds the
-- text now, or the one that was not expected.
create function put_memory(
  p_tenant text, p_about text, p_slot text, p_id text, p_key text, p_text text, p_source text, p_run text, p_turn text,
  p_metadata text, p_embedding real[], p_expected int, p_shard text, p_owner text, p_epoch bigint, p_earlier int)
returns table (outcome text, id text, key text, about text, text text, source text, run_id text, turn text,
  metadata json, version int, created_at timestamptz, updated_at timestamptz, valid_until timestamptz)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare known memories; place text; this timestamptz;
begin
  outcome := 'kept';
  if not memory_is_fenced(p_shard, p_owner, p_epoch) then
    outcome := 'lease';
    return next;
    return;
  end if;
  perform lock_memory(p_tenant, p_about, p_slot);
  select m.id into place from memories m where m.tenant = p_tenant and m.id = p_id;
  if place is null then
    select * into known from memories m
      where m.tenant = p_tenant and m.about = p_about and m.slot = p_slot and m.valid_until is null;
    place := known.id;
    if known.text = p_text then
      null;
    elsif p_expected <> coalesce(known.version, 0) then
      outcome := 'conflict';
    else
      -- The clock may have been set back.
      this := greatest(clock_timestamp(), known.updated_at + interval '1 microsecond');
      place := p_id;
      update memories m set valid_until = this
        where m.tenant = p_tenant and m.about = p_about and m.slot = p_slot and m.version = known.version;
      insert into memories (tenant, about, slot, version, id, key, text, source, run_id, turn, metadata, dimensions,
          embedding, created_at, updated_at)
        values (p_tenant, p_about, p_slot, coalesce(known.version, 0) + 1, p_id, p_key, p_text, p_source, p_run, p_turn,
          p_metadata::json, coalesce(cardinality(p_embedding), 0), p_embedding, coalesce(known.created_at, this), this);
      delete from memories m where m.tenant = p_tenant and m.about = p_about and m.slot = p_slot
        and m.version <= known.version - p_earlier;
    end if;
  end if;
  if place is null then
    return next;
    return;
  end if;
  return query select outcome, m.id, m.key, m.about, m.text, m.source, m.run_id, m.turn, m.metadata, m.version,
      m.created_at, m.updated_at, m.valid_until
    from memories m where m.tenant = p_tenant and m.id = place;
end $$;

-- Delete all versions of the memory with this slot, otherwise of the one with this id. `outcome` is 'done' or
-- 'lease'.
create function forget_memory(
  p_tenant text, p_about text, p_slot text, p_id text, p_shard text, p_owner text, p_epoch bigint)
returns table (outcome text, removed int)
language plpgsql set search_path from current as $$
declare place text;
begin
  outcome := 'done';
  removed := 0;
  if not memory_is_fenced(p_shard, p_owner, p_epoch) then
    outcome := 'lease';
    return next;
    return;
  end if;
  place := memory_slot(p_tenant, p_about, p_slot, p_id);
  perform lock_memory(p_tenant, p_about, place);
  delete from memories m where m.tenant = p_tenant and m.about = p_about and m.slot = place;
  get diagnostics removed = row_count;
  return next;
end $$;
