-- Deliver dead letters again as new messages, each of them once. Types are locked before dead letters, as in
-- `redrive_run`.
create or replace function redrive_dead_letters(me text, d_id bigint[], m_agent text[], m_hash bigint[],
  m_sender text[], m_id text[], m_body text[])
returns table (i int, arrival bigint) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare mine bigint[];
begin
  perform lock_types(m_agent);
  select coalesce(array_agg(l.id), '{}') into mine from (
    select d.id from dead_letters d where d.id = any(d_id) and d.redriven_at is null
      order by d.id for no key update) l;
  update dead_letters d set redriven_at = clock_timestamp() where d.id = any(mine);
  return query
    select x.ord::int, k.arrival
      from (select array_agg(d.ord order by d.ord) as ords,
          array_agg(d.agent order by d.ord) as agents, array_agg(d.hash order by d.ord) as hashes,
          array_agg(d.sender order by d.ord) as senders, array_agg(d.mid order by d.ord) as ids,
          array_agg(d.body order by d.ord) as bodies
        from unnest(d_id, m_agent, m_hash, m_sender, m_id, m_body)
          with ordinality d(id, agent, hash, sender, mid, body, ord)
        where d.id = any(mine)) a
      cross join lateral deliver_mail(me, a.agents, a.hashes, a.senders, a.ids, a.bodies) k
      cross join lateral (select a.ords[k.i] as ord) x
      where a.ords is not null and k.fresh;
end $$;
