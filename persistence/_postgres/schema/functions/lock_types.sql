-- Shared lock of transactions that insert rows of these agents, so that a type is not declared in the meantime.
create or replace function lock_types(agents text[]) returns void language plpgsql set search_path from current
as $$
begin
  perform pg_advisory_xact_lock_shared(hashtext('types of ' || current_schema()), hashtext(t.type))
    from (select distinct agent_type(a) as type from unnest(agents) a order by 1) t;
end $$;
