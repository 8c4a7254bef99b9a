-- Return the first `most` agents of a tenant after `p_after` that have state, follows, messages, conversations,
-- sessions or runs, by id. Ids of a tenant begin with its name and a colon. Ids of the default tenant lie between
-- those of other tenants, which the loop skips.
create or replace function agents_to_erase(p_tenant text, p_after text, most int) returns setof text
language plpgsql stable set search_path from current set enable_seqscan = off as $$
declare
  place text collate "C" := p_after; low text collate "C" := p_tenant || ':'; one text; found_count int := 0;
begin
  if p_tenant <> 'default' and place < low then place := low; end if;
  while found_count < most loop
    select k.agent into one from (
      (select i.agent from inbox i where i.agent > place order by i.agent limit 1)
      union all (select a.agent from agent_state a where a.agent > place order by a.agent limit 1)
      union all (select t.agent from transcripts t where t.agent > place order by t.agent limit 1)
      union all (select t.agent from transcript_turns t where t.agent > place order by t.agent limit 1)
      union all (select t.agent from sessions t where t.agent > place order by t.agent limit 1)
      union all (select f.follower from follows f where f.follower || E'\n' > place || E'\n'
        order by f.follower || E'\n' limit 1)) k
      order by k.agent collate "C" limit 1;
    exit when one is null;
    if agent_tenant(one) = p_tenant then
      return next one;
      place := one;
      found_count := found_count + 1;
    elsif p_tenant <> 'default' then
      exit;
    else
      place := agent_tenant(one) || ';';
    end if;
  end loop;
end $$;
