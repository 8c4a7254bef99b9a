-- Change follows as part of commits. The commits hold the fences of their agents' shards.
create or replace function change_follows(p_agent text[], p_hash bigint[], p_topic text[], p_mode text[])
returns void language plpgsql set search_path from current as $$
begin
  perform 1 from apply_follows(p_agent, p_hash, p_topic, p_mode);
end $$;
