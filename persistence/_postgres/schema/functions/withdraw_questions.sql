-- Withdraw refused questions that no run has taken, in the commit that records the refusal. Their ids stay known,
-- since a copy may still be delivered.
create or replace function withdraw_questions(p_relations json, p_bad int[])
returns table (agent text, sender text, id text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare x record;
begin
  for x in
    select * from json_to_recordset(p_relations -> 'withdraws')
        as w(t int, agent text, hash bigint, sender text, id text)
      where w.t <> all(p_bad) order by w.agent, w.sender, w.id
  loop
    -- In the order of `ingest_mail`: the inbox comes before the outbox.
    insert into inbox (agent, sender, message_id, shard, hash, state)
      select x.agent, x.sender, x.id, shard_of(x.agent, x.hash, y.mode, y.partitions), x.hash, 'd'
        from outbox o left join types y on y.type = agent_type(x.agent)
        where o.sender = x.sender and o.target = x.agent and o.message_id = x.id
      on conflict do nothing;
    delete from outbox o where o.sender = x.sender and o.target = x.agent and o.message_id = x.id;
    -- Not "= 'p'", which matches the partial index of all waiting messages; no question has state 'l'.
    update inbox i set state = 'd', body = null
      where i.agent = x.agent and i.sender = x.sender and i.message_id = x.id and i.state in ('p', 'l');
    agent := x.agent; sender := x.sender; id := x.id;
    return next;
  end loop;
end $$;
