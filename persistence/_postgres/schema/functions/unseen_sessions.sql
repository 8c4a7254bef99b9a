-- Return the numbers of submits that are refused because their session does not exist, is being deleted, or belongs to
-- another owner. `r_owner`: null if the session need not exist, '' if its owner does not matter.
create or replace function unseen_sessions(r_agent text[], r_owner text[]) returns bigint[]
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  return array(select q.i from unnest(r_agent, r_owner) with ordinality q(agent, owner, i)
    left join lateral (select n.owner, n.created_at, n.is_deleting from sessions n
      where n.agent = q.agent offset 0) s on true
    where q.owner is not null
      and (s.created_at is null or s.is_deleting or (q.owner <> '' and s.owner is distinct from q.owner)));
end $$;
