-- Ask a run and its subtree to stop, and notify the owners. Returns the runs that are open.
create or replace function request_cancel(me text, p_run text, p_reason text)
returns table (run_id text, agent text) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare tree text[] := flag_tree(p_run, p_reason);
begin
  perform nudge_owners(me, array_agg(s.owner), array_agg('cancel'::text), array_agg(r.agent),
      array_agg(r.run_id))
    from runs r join shards s on s.shard = r.shard where r.run_id = any(tree) and is_open(r.status);
  return query select r.run_id, r.agent from runs r
    where r.run_id = any(tree) and is_open(r.status) order by r.run_id;
end $$;
