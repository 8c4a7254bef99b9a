-- Hosts with and without a broker do not read each other's messages: refuse a host of the other kind. The first host
-- with a broker makes the database brokered, once no host without one serves any more.
create or replace function same_kind_of_mail(me text, p_brokered boolean, at timestamptz) returns void
language plpgsql set search_path from current as $$
declare is_brokered boolean;
begin
  select d.brokered into is_brokered from deployment d for update;
  if is_brokered = p_brokered then return; end if;
  if is_brokered or exists (select 1 from hosts h where h.incarnation <> me and h.expires_at >= at
      and cardinality(h.types) + cardinality(h.shards) > 0) then
    raise exception '%', case when is_brokered then 'brokered' else 'unbrokered' end
      using errcode = 'CB003';
  end if;
  update deployment set brokered = true;
end $$;
