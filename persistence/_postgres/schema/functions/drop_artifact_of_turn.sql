-- Trigger: delete the artifact of a deleted turn, for every statement that deletes turns.
create or replace function drop_artifact_of_turn()
returns trigger
language plpgsql set search_path from current as $$
begin
  perform drop_artifacts(agent_tenant(old.agent), old.artifact);
  return null;
end $$;
