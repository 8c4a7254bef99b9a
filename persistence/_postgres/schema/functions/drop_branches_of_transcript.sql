-- Trigger: delete branches and kept cuts of a deleted conversation, for every statement that deletes conversations.
create or replace function drop_branches_of_transcript()
returns trigger
language plpgsql set search_path from current set enable_seqscan = off as $$
begin
  delete from transcript_branches b where b.agent = old.agent and b.session = old.session;
  delete from transcript_cuts c where c.agent = old.agent and c.session = old.session;
  return null;
end $$;
