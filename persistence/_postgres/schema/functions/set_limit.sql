-- Create or change a limit, and notify all hosts.
create or replace function set_limit(p_scope text, p_max int, p_rate double precision, p_burst int, p_weight int)
returns void language plpgsql set search_path from current as $$
begin
  insert into limits as l (scope, max_concurrent, rate_per_s, burst, weight, tokens)
    values (p_scope, p_max, p_rate, p_burst, p_weight, p_burst)
    on conflict (scope) do update set max_concurrent = p_max, rate_per_s = p_rate, burst = p_burst,
      weight = p_weight, filled_at = present(),
      tokens = case when l.rate_per_s is null then p_burst else least(p_burst,
        l.tokens + l.rate_per_s * extract(epoch from greatest(present() - l.filled_at, '0 s'))) end;
  -- Hosts do not report executing runs to a limit without `max_concurrent`.
  delete from limit_places p where p.scope = p_scope and p_max is null;
  perform pg_notify(current_schema() || ':all', '[["limits",null,null]]');
end $$;
