-- Write one schedule over the revision that the caller read, or create it; returns the new revision, or null if
-- another revision is stored.
create or replace function put_schedule(me text, p_expected bigint, p_tenant text, p_name text, p_agent text,
  p_hash bigint, p_payload text, p_cron text, p_timezone text, p_at timestamptz, p_catch_up text,
  p_paused boolean, p_base timestamptz, p_next timestamptz, p_last timestamptz)
returns bigint language plpgsql set search_path from current as $$
declare made bigint;
begin
  if p_expected is null then
    insert into schedules (tenant, name, agent, hash, payload, cron, timezone, at, catch_up, is_paused,
        base_at, next_at, last_at, revision)
      values (p_tenant, p_name, p_agent, p_hash, p_payload::json, p_cron, p_timezone, p_at, p_catch_up,
        p_paused, p_base, p_next, p_last, nextval('schedule_revisions'))
      on conflict do nothing returning revision into made;
  else
    update schedules s set agent = p_agent, hash = p_hash, payload = p_payload::json, cron = p_cron,
        timezone = p_timezone, at = p_at, catch_up = p_catch_up, is_paused = p_paused,
        base_at = p_base, next_at = p_next, last_at = p_last, revision = nextval('schedule_revisions')
      where s.tenant = p_tenant and s.name = p_name and s.revision = p_expected
      returning s.revision into made;
  end if;
  if made is not null then
    perform nudge_owners(me, array_agg(h.owner), array_agg('schedule'::text), array_agg(p_agent),
        array_agg(null::text))
      from (select 1) one
      left join types y on y.type = agent_type(p_agent)
      join shards h on h.shard = shard_of(p_agent, p_hash, y.mode, y.partitions);
  end if;
  return made;
end $$;
