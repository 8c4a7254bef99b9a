-- Subtract these ended runs from the open runs in their trees' budgets.
create or replace function give_places_back(p_ended text[]) returns void
language plpgsql set search_path from current as $$
declare back text[]; given int[];
begin
  select array_agg(x.root), array_agg(x.n) into back, given from (
    select r.root, count(r.parent)::int as n from runs r
      where r.run_id = any(p_ended) group by r.root) x
    where x.n > 0;
  if back is not null then
    perform 1 from budgets b where b.root = any(back) order by b.root for no key update;
    update budgets b set open = b.open - given[array_position(back, b.root)] where b.root = any(back);
  end if;
end $$;
