-- The run that asked with this message; null if the message is not a question. Most messages are not: the text search
-- avoids parsing them.
create or replace function asker_of(body json) returns text language sql immutable parallel safe
  return case when strpos(body::text, '"reply_to"') > 0 then body ->> 'reply_to' end;
