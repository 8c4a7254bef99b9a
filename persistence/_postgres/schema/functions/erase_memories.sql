-- Delete memories of a tenant, with their earlier versions and embeddings; of these scopes only, if any are given.
-- Each call starts at the scope and slot where the last batch ended, so it does not read rows that earlier batches
-- deleted. Deletes nothing if the table does not exist. `order by` names the key's index and sorts are off, so that
-- the plan uses it whatever the table's statistics say.
create or replace function erase_memories(
  p_tenant text, p_abouts text[], most int, p_about text default '', p_slot text default '')
returns table (versions int, about text, slot text)
language plpgsql set search_path from current set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_column
declare places tid[]; one text; found_about text := p_about; found_slot text := p_slot;
begin
  versions := 0; places := '{}';
  if to_regclass('memories') is null then
    return next;
    return;
  end if;
  if p_abouts is null then
    select array_agg(o.place), max(o.about), (array_agg(o.slot order by o.n desc))[1]
      into places, found_about, found_slot
      from (select k.*, row_number() over () as n from (
        select n.ctid as place, n.about, n.slot from memories n
          where n.tenant = p_tenant and (n.about, n.slot) >= (p_about, p_slot)
          order by n.tenant, n.about, n.slot, n.version limit most for update) k) o;
  else
    foreach one in array array(select a from unnest(p_abouts) a where a >= p_about collate "C" order by a collate "C") loop
      exit when cardinality(places) = most;
      select places || coalesce(array_agg(k.place), '{}'), one, max(k.slot) into places, found_about, found_slot
        from (select n.ctid as place, n.slot from memories n
          where n.tenant = p_tenant and n.about = one and n.slot >= case one when p_about then p_slot else '' end
          order by n.tenant, n.about, n.slot, n.version limit most - cardinality(places) for update) k;
    end loop;
  end if;
  delete from memories m where m.ctid = any(places);
  get diagnostics versions = row_count;
  about := found_about;
  slot := found_slot;
  return next;
end $$;
