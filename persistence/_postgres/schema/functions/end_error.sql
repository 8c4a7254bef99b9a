-- The outcome of an ended run, as the error in the answer to waiting runs.
create or replace function end_error(p_status text, p_error json, p_reason text) returns json
  language sql immutable parallel safe
  return case p_status when 'FAILED' then p_error
    when 'CANCELLED' then json_build_object('message',
      coalesce(p_reason, p_error ->> 'message', '')) end;
