-- Notify the owners (other than `me`) about keys, in as many notifications as needed: a payload holds up to 8000
-- bytes.
create or replace function nudge_owners(me text, owners text[], kinds text[], agents text[], run_ids text[])
returns void language sql set search_path from current as $$
  select pg_notify(nudge_channel(c.owner), '[' || string_agg(c.item, ',') || ']') from (
    select i.owner, i.item,
        sum(octet_length(i.item) + 1) over (partition by i.owner order by i.item) / 6000 as chunk
      from (select distinct n.owner, json_build_array(n.kind, n.agent, n.run_id)::text as item
        from unnest(owners, kinds, agents, run_ids) n(owner, kind, agent, run_id)
        where n.owner is not null and n.owner is distinct from me) i) c
    group by c.owner, c.chunk
$$;
