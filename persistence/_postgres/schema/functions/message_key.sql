-- The key of a message id in `message_ids`. Agents and senders contain no line break.
create or replace function message_key(agent text, sender text, id text) returns bytea
  language sql immutable parallel safe
  return substr(sha256(convert_to(agent || E'\n' || sender || E'\n' || id, 'UTF8')), 1, 16);
