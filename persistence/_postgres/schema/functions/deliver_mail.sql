-- Write pending messages. Returns a row per message: its arrival number, and whether it is new. An id that was moved
-- to `message_ids` is known.
create or replace function deliver_mail(me text, m_agent text[], m_hash bigint[], m_sender text[], m_id text[],
  m_body text[])
returns table (i int, arrival bigint, fresh boolean, state text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made bigint[];
begin
  perform lock_types(m_agent);
  with kept as (
    insert into inbox (agent, sender, message_id, shard, hash, body)
      select m.agent, m.sender, m.id, shard_of(m.agent, m.hash, y.mode, y.partitions), m.hash,
          m.body::json
        from unnest(m_agent, m_hash, m_sender, m_id, m_body)
          with ordinality m(agent, hash, sender, id, body, ord)
        left join types y on y.type = agent_type(m.agent)
        where not exists (select 1 from message_ids k
            where k.key = message_key(m.agent, m.sender, m.id) offset 0)
          and not exists (select 1 from inbox i
            where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0)
        order by m.ord
      on conflict do nothing returning arrival)
    select coalesce(array_agg(k.arrival), '{}') into made from kept k;
  perform nudge_owners(me, array_agg(s.owner), array_agg('mail'::text), array_agg(n.agent),
      array_agg(null::text))
    from unnest(m_agent, m_sender, m_id) m(agent, sender, id)
    cross join lateral (select * from inbox i
      where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0) n
    join shards s on s.shard = n.shard and s.owner is distinct from me
    where n.arrival = any(made);
  return query
    select m.ord::int, n.arrival, n.arrival = any(made), n.state::text
      from unnest(m_agent, m_sender, m_id) with ordinality m(agent, sender, id, ord)
      cross join lateral (select * from inbox i
        where i.agent = m.agent and i.sender = m.sender and i.message_id = m.id offset 0) n;
end $$;
