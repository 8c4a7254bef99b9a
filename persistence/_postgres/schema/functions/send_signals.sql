-- Write signals. The run is share-locked first: either a suspending commit sees the signal, or the signal sees the
-- suspended run and its owner is notified.
-- A decision (a signal whose name begins with ~) is stored with '~' as its sender and NAME@SEQ as its id, while its
-- run is at the entry SEQ. The key makes it unique. A caller that gives it another id decides about the run's present
-- entry. `same`: exactly this decision is stored.
create or replace function send_signals(me text, g_run text[], g_name text[], g_payload text[], g_sender text[],
  g_id text[])
returns table (i int, agent text, ended boolean, fresh boolean, same boolean)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare made bigint[]; g_about int[];
begin
  perform 1 from runs r where r.run_id = any(g_run) order by r.run_id for share;
  if '~' = any(select left(g.name, 1) from unnest(g_name) g(name)) then
    select array_agg(case when left(g.name, 1) = '~' then to_decide(g.run, g.name) end order by g.ord),
        array_agg(case when left(g.name, 1) = '~' then '~' else g.sender end order by g.ord),
        array_agg(case when left(g.name, 1) <> '~' or starts_with(g.id, g.name || '@') then g.id
          else g.name || '@' || coalesce(to_decide(g.run, g.name)::text, '') end order by g.ord)
      into g_about, g_sender, g_id
      from unnest(g_run, g_name, g_sender, g_id) with ordinality g(run, name, sender, id, ord);
  end if;
  with kept as (
    insert into signals (run_id, name, payload, sender, message_id)
      select g.run, g.name, g.payload::json, g.sender, g.id
        from unnest(g_run, g_name, g_payload, g_sender, g_id, g_about)
          with ordinality g(run, name, payload, sender, id, about, ord)
        cross join lateral (select r.status from runs r where r.run_id = g.run offset 0) r
        where is_open(r.status) and (left(g.name, 1) <> '~' or g.id = g.name || '@' || g.about)
        order by g.ord
      on conflict do nothing returning n)
    select coalesce(array_agg(k.n), '{}') into made from kept k;
  perform nudge_owners(me, array_agg(h.owner), array_agg('signal'::text), array_agg(r.agent),
      array_agg(r.run_id))
    from unnest(g_run, g_sender, g_id) g(run, sender, id)
    cross join lateral (select * from signals s
      where s.run_id = g.run and s.sender = g.sender and s.message_id = g.id offset 0) s
    cross join lateral (select * from runs r where r.run_id = g.run offset 0) r
    join shards h on h.shard = r.shard and h.owner is distinct from me
    where s.n = any(made);
  return query
    select g.ord::int, r.agent, r.ended_at is not null, coalesce(s.n = any(made), false),
        left(g.name, 1) = '~' and coalesce(s.payload::text = g.payload, false)
      from unnest(g_run, g_name, g_payload, g_sender, g_id)
        with ordinality g(run, name, payload, sender, id, ord)
      cross join lateral (select * from runs r where r.run_id = g.run offset 0) r
      left join lateral (select * from signals s
        where s.run_id = g.run and s.sender = g.sender and s.message_id = g.id offset 0) s on true;
end $$;
