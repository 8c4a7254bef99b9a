-- Write the answers, waits, follows and posts of commits. Returns the owners to notify.
create or replace function write_relations(p_relations json, r_run text[], r_agent text[], p_bad int[], p_brokered boolean)
returns table (t int, kind text, agent text, name text, owner text, place bigint)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare first int;
begin
  if p_relations -> 'spawns' is not null then
    return query select x.t, 'run', r.agent, r.run_id, s.owner, r.arrival
      from json_to_recordset(p_relations -> 'spawns') as x(t int, run text)
      cross join lateral (select * from runs r where r.run_id = x.run offset 0) r
      left join shards s on s.shard = r.shard
      where x.t <> all(p_bad) order by r.arrival;
  end if;
  if p_relations -> 'answers' is not null then
    return query select x.t, 'signal', r.agent, r.run_id, s.owner, null::bigint
      from keep_replies(p_relations, r_run, p_bad) x
      cross join lateral (select * from runs r where r.run_id = x.waiter offset 0) r
      left join shards s on s.shard = r.shard
      where is_open(r.status);
  end if;
  if coalesce(p_relations -> 'waits', p_relations -> 'gone', p_relations -> 'waiting') is not null then
    return query select x.t, 'signal', r.agent, r.run_id, s.owner, null::bigint
      from keep_waits(p_relations, r_run, p_bad) x
      cross join lateral (select * from runs r where r.run_id = x.waiter offset 0) r
      left join shards s on s.shard = r.shard
      where is_open(r.status);
  end if;
  if p_relations -> 'follows' is not null then
    perform change_follows(array_agg(r_agent[f.t]), array_agg(f.hash), array_agg(f.topic),
        array_agg(f.mode))
      from json_to_recordset(p_relations -> 'follows') as f(t int, hash bigint, topic text, mode text)
      where f.t <> all(p_bad) having count(*) > 0;
  end if;
  if p_relations -> 'posts' is not null then
    return query select a.first, 'fanout', null::text, x.shard, x.owner, null::bigint
      from (select min(p.t) as first, array_agg(p.topic) as topics, array_agg(p.hash) as hashes,
          array_agg(p.sender) as senders, array_agg(p.id) as ids, array_agg(p.body) as bodies
        from json_to_recordset(p_relations -> 'posts')
          as p(t int, topic text, hash bigint, sender text, id text, body text)
        where p.t <> all(p_bad) having count(*) > 0) a
      cross join lateral publish_posts(a.topics, a.hashes, a.senders, a.ids, a.bodies, p_brokered) x;
  end if;
end $$;
