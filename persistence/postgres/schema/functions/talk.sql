-- Write the answers, waits, follows and posts of commits. Returns the owners to notify.
create or replace function talk(p_talk json, t_run text[], t_agent text[], p_bad int[], p_brokered boolean)
returns table (t int, kind text, agent text, name text, owner text, place bigint)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare first int;
begin
  if p_talk -> 'spawns' is not null then
    return query select x.t, 'run', r.agent, r.run_id, s.owner, r.arrival
      from json_to_recordset(p_talk -> 'spawns') as x(t int, run text)
      cross join lateral (select * from runs r where r.run_id = x.run offset 0) r
      left join shards s on s.shard = r.shard
      where x.t <> all(p_bad) order by r.arrival;
  end if;
  if p_talk -> 'answers' is not null then
    return query select x.t, 'signal', r.agent, r.run_id, s.owner, null::bigint
      from keep_replies(p_talk, t_run, p_bad) x
      cross join lateral (select * from runs r where r.run_id = x.waiter offset 0) r
      left join shards s on s.shard = r.shard
      where is_open(r.status);
  end if;
  if coalesce(p_talk -> 'waits', p_talk -> 'gone', p_talk -> 'waiting') is not null then
    return query select x.t, 'signal', r.agent, r.run_id, s.owner, null::bigint
      from keep_waits(p_talk, t_run, p_bad) x
      cross join lateral (select * from runs r where r.run_id = x.waiter offset 0) r
      left join shards s on s.shard = r.shard
      where is_open(r.status);
  end if;
  if p_talk -> 'follows' is not null then
    perform change_follows(array_agg(t_agent[f.t]), array_agg(f.hash), array_agg(f.topic),
        array_agg(f.mode))
      from json_to_recordset(p_talk -> 'follows') as f(t int, hash bigint, topic text, mode text)
      where f.t <> all(p_bad) having count(*) > 0;
  end if;
  if p_talk -> 'posts' is not null then
    return query select a.first, 'fanout', null::text, x.shard, x.owner, null::bigint
      from (select min(p.t) as first, array_agg(p.topic) as topics, array_agg(p.hash) as hashes,
          array_agg(p.sender) as senders, array_agg(p.id) as ids, array_agg(p.body) as bodies
        from json_to_recordset(p_talk -> 'posts')
          as p(t int, topic text, hash bigint, sender text, id text, body text)
        where p.t <> all(p_bad) having count(*) > 0) a
      cross join lateral publish_posts(a.topics, a.hashes, a.senders, a.ids, a.bodies, p_brokered) x;
  end if;
end $$;
