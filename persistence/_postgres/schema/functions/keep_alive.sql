-- Extend a host's lease. Returns its new end.
create or replace function keep_alive(me text, lease interval) returns timestamptz
language sql set search_path from current as $$
  insert into hosts (incarnation, expires_at) values (me, present() + lease)
    on conflict (incarnation) do update set expires_at = excluded.expires_at
    returning expires_at
$$;
