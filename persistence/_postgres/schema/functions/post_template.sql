-- The start of the JSON message that each follower of a post gets, up to its target. Values keep their text.
create or replace function post_template(topic text, sender text, id text, body json) returns text
language sql immutable parallel safe set search_path from current as $$
  select '{' || string_agg(to_json(k.key)::text || ':' || k.value::text, ',')
      || ',"id":' || to_json(post_id(sender, id))::text
      || ',"sender":' || to_json('topic:' || topic)::text
      || ',"metadata":{' || coalesce(trim(leading '{' from trim(trailing '}'
          from nullif((body -> 'metadata')::text, '{}'))) || ',', '')
      || '"publisher":' || to_json(sender)::text || '},"target":'
    from json_each(body) k where k.key not in ('id', 'target', 'sender', 'topic', 'metadata')
$$;
