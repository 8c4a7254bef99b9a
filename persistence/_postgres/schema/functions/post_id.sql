-- The id of a post as its followers get it; equals `message_id_of_post` of the kernel. Senders contain no line break.
create or replace function post_id(sender text, id text) returns text language sql immutable parallel safe
  return left(encode(sha256(convert_to('post' || E'\n' || sender || E'\n' || id, 'UTF8')), 'hex'), 32);
