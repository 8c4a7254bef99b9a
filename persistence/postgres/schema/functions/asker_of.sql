-- The run that asks with this message, if one does. Few messages are questions: they are not parsed.
create or replace function asker_of(body json) returns text language sql immutable parallel safe
  return case when strpos(body::text, '"reply_to"') > 0 then body ->> 'reply_to' end;
