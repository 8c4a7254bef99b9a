-- Delete outbox messages that the broker has accepted. A row that was written again in the meantime has another
-- number and stays.
create or replace function forget_sent(g_sender text[], g_target text[], g_n bigint[]) returns void
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  delete from outbox o where o.ctid = any(array(
    select m.ctid from unnest(g_sender, g_target, g_n) g(sender, target, n)
      cross join lateral (select i.ctid from outbox i
        where i.sender || E'\n' || i.target = g.sender || E'\n' || g.target and i.n = g.n offset 0) m));
end $$;
