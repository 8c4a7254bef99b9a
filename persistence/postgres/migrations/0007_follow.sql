-- Who follows what, and posts on their way to followers. A post is one row and one row for each shard
-- that has followers; the owners of the shards write the inbox rows, a few thousand in a commit.
-- Follows and posts have numbers of one sequence: a post is for those whose follow has a smaller number
-- and whose end, if any, a greater one. `lock_follows` makes the numbers tell the truth: whoever draws
-- one for a follow has seen every post with a smaller one, and no post is half-way meanwhile.
-- Lock order: types (advisory), shards, the stream (advisory), runs, follows (advisory), fanouts, posts.
-- A turn changes its follows before it publishes, so that nobody who shares the lock asks for it alone.
-- A row's state may be 'l' now: mail of a lazy follower. It is waiting mail that nobody is told of.
-- Takes a lock on inbox that keeps its writers waiting while the (empty) index is built.
-- Old hosts go on: they never see a row of state 'l', and find it when they ask for an agent's mail.

create sequence follow_numbers;

-- An interval of one agent's interest; `until` null: it lasts. Modes: e eager, l lazy.
create table follows (
  topic text collate "C" not null,
  shard text collate "C" not null,
  follower text collate "C" not null,
  since bigint not null default nextval('follow_numbers'),
  until bigint,
  mode "char" not null,
  hash bigint not null,
  primary key (topic, shard, follower, since)
) with (autovacuum_vacuum_scale_factor = 0.05);
create unique index follows_active on follows (topic, shard, follower) where until is null;
create index follows_ended on follows (until) where until is not null;
-- An expression, so that no plan takes this index for a search by topic (see 0001).
create index follows_of_agent on follows ((follower || E'\n'), topic);
create index follows_undeclared on follows (shard) where shard like 'u:%';

-- `body` is a follower's message up to its target, which comes last; null when every shard is done.
-- The row stays, so that its id is known.
create table posts (
  seq bigint primary key default nextval('follow_numbers'),
  topic text collate "C" not null,
  sender text collate "C" not null,
  id text collate "C" not null,
  message_id text collate "C" not null,
  shards_left int not null default 0,
  body text,
  published_at timestamptz not null default clock_timestamp(),
  unique (topic, sender, id)
) with (fillfactor = 80);
create index posts_done on posts (published_at) where body is null;

-- A post that a shard's followers have to get; those up to `after` have it.
create table fanouts (
  shard text collate "C" not null,
  seq bigint not null,
  topic text collate "C" not null,
  after text collate "C" not null default '',
  primary key (shard, seq)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

create index inbox_lazy on inbox (shard) where state = 'l';

create function lock_follows(alone boolean) returns void language plpgsql set search_path from current
as $$
begin
  if alone then
    perform pg_advisory_xact_lock(hashtext('follows of ' || current_schema()), 0);
  else
    perform pg_advisory_xact_lock_shared(hashtext('follows of ' || current_schema()), 0);
  end if;
end $$;

-- The id of a post as its followers get it; `message_id_of_post` of the kernel. No sender has a line
-- break.
create function post_id(sender text, id text) returns text language sql immutable parallel safe
  return left(encode(sha256(convert_to('post' || E'\n' || sender || E'\n' || id, 'UTF8')), 'hex'), 32);

-- Change follows, in order. A row per change: the number of the subscription that is there then; for an
-- end (null mode) its number, null when there was none.
create function apply_follows(p_agent text[], p_hash bigint[], p_topic text[], p_mode text[])
returns table (i int, number bigint)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare c record;
begin
  perform lock_follows(true);
  for c in
    select n.ord::int as i, n.agent, n.hash, n.topic, left(n.mode, 1)::"char" as mode,
        shard_of(n.agent, n.hash, y.mode, y.partitions) as shard
      from unnest(p_agent, p_hash, p_topic, p_mode) with ordinality n(agent, hash, topic, mode, ord)
      left join types y on y.type = agent_type(n.agent)
      order by n.ord
  loop
    i := c.i;
    number := null;
    if c.mode is null then
      update follows f set until = nextval('follow_numbers')
        where f.topic = c.topic and f.shard = c.shard and f.follower = c.agent and f.until is null
        returning f.until into number;
    else
      insert into follows as f (topic, shard, follower, mode, hash)
        values (c.topic, c.shard, c.agent, c.mode, c.hash)
        on conflict (topic, shard, follower) where until is null do update set mode = excluded.mode
        returning f.since into number;
    end if;
    return next;
  end loop;
end $$;

-- The follows of turns, whose agents' shards are fenced by them.
create function change_follows(p_agent text[], p_hash bigint[], p_topic text[], p_mode text[])
returns void language plpgsql set search_path from current as $$
begin
  perform 1 from apply_follows(p_agent, p_hash, p_topic, p_mode);
end $$;

-- The follows of anybody.
create function follow_topics(p_agent text[], p_hash bigint[], p_topic text[], p_mode text[])
returns table (i int, number bigint) language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  perform lock_types(p_agent);
  return query select a.i, a.number from apply_follows(p_agent, p_hash, p_topic, p_mode) a;
end $$;

-- What every follower of a post gets, up to its target. Values keep the text they have.
create function post_template(topic text, sender text, id text, body json) returns text
language sql immutable parallel safe set search_path from current as $$
  select '{' || string_agg(to_json(k.key)::text || ':' || k.value::text, ',')
      || ',"id":' || to_json(post_id(sender, id))::text
      || ',"sender":' || to_json('topic:' || topic)::text
      || ',"metadata":{' || coalesce(trim(leading '{' from trim(trailing '}'
          from nullif((body -> 'metadata')::text, '{}'))) || ',', '')
      || '"publisher":' || to_json(sender)::text || '},"target":'
    from json_each(body) k where k.key not in ('id', 'target', 'sender', 'topic', 'metadata')
$$;

-- Write posts, in order. Rows: a post that was not known (without shard), and the shards, with their
-- owners, whose followers have to get it.
create function write_posts(p_topic text[], p_hash bigint[], p_sender text[], p_id text[],
  p_body text[], p_brokered boolean)
returns table (i int, shard text, owner text)
language plpgsql set search_path from current set enable_seqscan = off
  set enable_hashjoin = on as $$
#variable_conflict use_column
declare made bigint[];
begin
  perform lock_follows(false);
  with kept as (
    insert into posts (topic, sender, id, message_id)
      select n.topic, n.sender, n.id, post_id(n.sender, n.id)
        from unnest(p_topic, p_sender, p_id) with ordinality n(topic, sender, id, ord)
        order by n.ord
      on conflict do nothing returning seq)
    select coalesce(array_agg(k.seq), '{}') into made from kept k;
  if cardinality(made) = 0 then return; end if;
  -- Of a topic's followers only one of each shard is looked at.
  return query
    with fresh as materialized (
      select distinct on (o.seq) n.ord::int as i, o.seq, n.topic
        from unnest(p_topic, p_sender, p_id) with ordinality n(topic, sender, id, ord)
        cross join lateral (select p.seq from posts p
          where p.topic = n.topic and p.sender = n.sender and p.id = n.id offset 0) o
        where o.seq = any(made) order by o.seq, n.ord),
    followed as materialized (
      select t.topic, x.shard from (select distinct f.topic from fresh f) t
        cross join lateral (
          with recursive s as (
            (select f.shard from follows f where f.topic = t.topic and f.until is null
              order by f.shard limit 1)
            union all
            select (select f.shard from follows f
                where f.topic = t.topic and f.until is null and f.shard > s.shard
                order by f.shard limit 1)
              from s where s.shard is not null)
          select s.shard from s where s.shard is not null) x),
    todo as (
      insert into fanouts (shard, seq, topic)
        select d.shard, f.seq, f.topic from fresh f join followed d on d.topic = f.topic
          order by f.seq, d.shard
        returning shard, seq),
    counted as (
      update posts p set shards_left = c.shards,
          body = post_template(p.topic, p.sender, p.id, p_body[c.i]::json)
        from (select f.i, f.seq, count(*)::int as shards
          from fresh f join followed d on d.topic = f.topic group by f.i, f.seq) c
        where p.seq = c.seq),
    observed as (
      insert into outbox (sender, target, message_id, shard, target_hash, body)
        select p_sender[f.i], 'topic:' || f.topic, p_id[f.i],
            shard_of('~topic/', p_hash[f.i], y.mode, y.partitions), p_hash[f.i], p_body[f.i]::json
          from fresh f left join types y on y.type = '~topic'
          where p_brokered order by f.seq
        on conflict do nothing)
    select f.i, null::text, null::text from fresh f
    union all
    select f.i, t.shard, h.owner from todo t join fresh f on f.seq = t.seq
      left join shards h on h.shard = t.shard;
end $$;

-- Tell the owners (other than `me`) of shards that there are posts for their followers. The shard stands
-- where other hints have a run.
create function nudge_fanouts(me text, shards text[], owners text[]) returns void
language sql set search_path from current as $$
  select nudge_owners(me, owners, array_fill('fanout'::text, array[cardinality(owners)]),
      array_fill(null::text, array[cardinality(owners)]), shards) where cardinality(owners) > 0
$$;

-- The posts of anybody, who are told with the same commit.
create function post_to_topics(me text, p_topic text[], p_hash bigint[], p_sender text[], p_id text[],
  p_body text[], p_brokered boolean)
returns table (i int, shard text, owner text)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare nth int[]; shards text[]; owners text[];
begin
  select array_agg(w.i), array_agg(w.shard), array_agg(w.owner) into nth, shards, owners
    from write_posts(p_topic, p_hash, p_sender, p_id, p_body,
      p_brokered or (select d.brokered from deployment d)) w;
  perform nudge_fanouts(me, array_agg(u.shard), array_agg(u.owner))
    from unnest(shards, owners) u(shard, owner)
    where u.owner is distinct from me and u.owner is not null having count(*) > 0;
  return query select u.i, u.shard, u.owner from unnest(nth, shards, owners) u(i, shard, owner);
end $$;

-- The posts of turns.
create function publish_posts(p_topic text[], p_hash bigint[], p_sender text[], p_id text[],
  p_body text[], p_brokered boolean)
returns table (shard text, owner text) language sql set search_path from current as $$
  select distinct w.shard, w.owner
    from write_posts(p_topic, p_hash, p_sender, p_id, p_body, p_brokered) w where w.shard is not null
$$;

-- Write the rows of a shard's next followers. `held`: whether the caller still owns the shard. `body`: the
-- message of the first of `agents`; theirs differ in the target only.
create function expand_fanout(p_shard text, p_owner text, p_epoch bigint, p_seq bigint, p_limit int)
returns table (held boolean, body text, agents text[], arrivals bigint[], lazy int, done boolean)
language plpgsql set search_path from current set enable_seqscan = off as $$
#variable_conflict use_column
declare begun text; of_topic text; of_post text; template text;
begin
  perform 1 from shards s where s.shard = p_shard and s.owner = p_owner and s.epoch = p_epoch
    for share;
  if not found then
    return query select false, null::text, '{}'::text[], '{}'::bigint[], 0, false;
    return;
  end if;
  select x.after, x.topic into begun, of_topic from fanouts x
    where x.shard = p_shard and x.seq = p_seq for update;
  if not found then
    return query select true, null::text, '{}'::text[], '{}'::bigint[], 0, true;
    return;
  end if;
  select p.message_id, p.body into of_post, template from posts p where p.seq = p_seq;
  return query
    with chunk as materialized (
      select f.follower, f.hash, f.mode from follows f
        where f.topic = of_topic and f.shard = p_shard and f.follower > begun
          and f.since < p_seq and (f.until is null or f.until > p_seq)
        order by f.follower limit p_limit),
    kept as (
      insert into inbox (agent, sender, message_id, shard, hash, state, body)
        select c.follower, 'topic:' || of_topic, of_post, p_shard, c.hash,
            case c.mode when 'l' then 'l' else 'p' end::"char",
            (template || to_json(c.follower)::text || '}')::json
          from chunk c order by c.follower
        on conflict do nothing returning agent, arrival, state),
    told as (
      select coalesce(array_agg(k.agent) filter (where k.state = 'p'), '{}') as agents,
          coalesce(array_agg(k.arrival) filter (where k.state = 'p'), '{}') as arrivals,
          count(*) filter (where k.state = 'l') as lazy
        from kept k),
    counted as (select count(*) as met, max(c.follower) as upto from chunk c),
    moved as (
      update fanouts x set after = c.upto from counted c
        where x.shard = p_shard and x.seq = p_seq and c.met = p_limit),
    ended as (
      delete from fanouts x using counted c
        where x.shard = p_shard and x.seq = p_seq and c.met < p_limit returning x.seq),
    closed as (
      update posts p set shards_left = p.shards_left - 1,
          body = case when p.shards_left > 1 then p.body end
        from ended e where p.seq = e.seq)
    select true, template || to_json(t.agents[1])::text || '}', t.agents, t.arrivals, t.lazy::int,
        c.met < p_limit
      from told t, counted c;
end $$;

-- Take away what nobody needs: ends of follows that no post on its way has to know, and posts that
-- every follower has and whose ids need not be known any more. Returns how many rows.
create function sweep_posts(p_limit int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare taken int; more int;
begin
  delete from follows f where f.ctid = any(array(
    select e.ctid from follows e
      where e.until is not null
        and not exists (select 1 from fanouts x
          where x.shard = e.shard and x.seq < e.until and x.topic = e.topic)
      order by e.until limit p_limit for update skip locked));
  get diagnostics taken = row_count;
  delete from posts p where p.ctid = any(array(
    select o.ctid from posts o
      where o.body is null and o.published_at < present() - interval '8 days'
      order by o.published_at limit p_limit for update skip locked));
  get diagnostics more = row_count;
  return taken + more;
end $$;

-- Bring follows and fanouts of these types to the shards that their agents have now; `moving` are those
-- that had other shards before (and no fanout), the others had none.
create function move_follows(p_types text[], moving text[]) returns void
language plpgsql set search_path from current as $$
begin
  if cardinality(moving) = 0 and not exists (select 1 from follows f
      where f.shard like 'u:%' and f.shard in (select 'u:' || t from unnest(p_types) t)) then
    return;
  end if;
  perform lock_follows(true);
  update follows f set shard = shard_of(f.follower, f.hash, y.mode, y.partitions) from types y
    where f.shard like 'u:%' and f.shard = 'u:' || y.type and y.type = any(p_types);
  if cardinality(moving) > 0 then
    update follows f set shard = shard_of(f.follower, f.hash, y.mode, y.partitions) from types y
      where y.type = agent_type(f.follower) and y.type = any(moving);
  end if;
  with gone as (
    delete from fanouts x where x.shard in (select 'u:' || t from unnest(p_types) t)
      returning x.shard, x.seq, x.topic, x.after),
  placed as (
    insert into fanouts (shard, seq, topic, after)
      select distinct f.shard, g.seq, g.topic, g.after from gone g
        join follows f on f.topic = g.topic and agent_type(f.follower) = substr(g.shard, 3)
      returning seq)
  update posts p set shards_left = p.shards_left + c.more,
      body = case when p.shards_left + c.more > 0 then p.body end
    from (select n.seq, sum(n.more)::int as more from (
        select w.seq, 1 as more from placed w union all select g.seq, -1 from gone g) n
      group by n.seq) c
    where p.seq = c.seq;
end $$;

-- As in 0005, and what is followed moves with the followers.
create or replace function declare_agents(p_types text[], p_partitions int, p_agents text[], p_hashes bigint[])
returns table (type text, partitions int) language plpgsql set search_path from current as $$
#variable_conflict use_column
declare every text[]; moving text[] := '{}'; clash text; made int; was text;
begin
  select coalesce(array_agg(x.t order by x.t), '{}') into every from (
    select unnest(p_types) as t union select agent_type(a) from unnest(p_agents) a) x;
  perform pg_advisory_xact_lock(hashtext('types of ' || current_schema()), hashtext(t.type))
    from unnest(every) t(type);
  for clash, was in
    select y.type, y.mode from types y where (y.type = any(p_types) and y.mode <> 'partitioned')
      or (y.type <> all(p_types) and y.type = any(every) and y.mode <> 'instance') order by y.type
  loop
    if exists (select 1 from runs r where agent_type(r.agent) = clash and r.open)
        or exists (select 1 from inbox n where agent_type(n.agent) = clash and n.state <> 'd')
        or exists (select 1 from hosts h where h.expires_at > present() and (clash = any(h.types)
          or exists (select 1 from shards s where s.type = clash and s.shard = any(h.shards))))
        or exists (select 1 from shards s join outbox o on o.shard = s.shard where s.type = clash)
        or exists (select 1 from shards s join fanouts x on x.shard = s.shard where s.type = clash) then
      raise exception '%|%', clash, was using errcode = 'CB002';
    end if;
    delete from cursors c using shards s where s.type = clash and c.shard = s.shard;
    delete from shards where type = clash;
    delete from types where type = clash;
    moving := moving || clash;
  end loop;
  perform 1 from shards s where s.shard in (select 'u:' || t from unnest(every) t)
    order by s.shard for update;
  delete from shards s where s.shard in (select 'u:' || t from unnest(every) t);
  delete from cursors c where c.shard in (select 'u:' || t from unnest(every) t);
  insert into types (type, mode, partitions)
    select e.type, case when e.type = any(p_types) then 'partitioned' else 'instance' end,
        p_partitions
      from unnest(every) e(type) order by e.type on conflict do nothing;
  insert into shards (shard, type)
    select n.shard, n.type from (
      select 'p:' || y.type || ':' || p as shard, y.type
        from types y, generate_series(0, y.partitions - 1) p where y.type = any(p_types)
      union
      select shard_of(a.agent, a.hash, 'instance', 1), agent_type(a.agent)
        from unnest(p_agents, p_hashes) a(agent, hash)) n
      order by n.shard on conflict do nothing;
  get diagnostics made = row_count;
  perform 1 from runs r where r.shard in (select 'u:' || t from unnest(every) t) and r.open
    order by r.run_id for no key update;
  update runs r set shard = shard_of(r.agent, r.hash, y.mode, y.partitions) from types y
    where r.shard = 'u:' || y.type and y.type = any(every) and r.open;
  update inbox n set shard = shard_of(n.agent, n.hash, y.mode, y.partitions) from types y
    where n.shard = 'u:' || y.type and y.type = any(every) and n.state in ('p', 'l');
  update outbox o set shard = shard_of(substr(o.target, 6), o.target_hash, y.mode, y.partitions)
    from types y where o.shard = 'u:' || y.type and y.type = any(every) and o.dead is not null;
  update outbox o set shard = shard_of('~topic/', o.target_hash, y.mode, y.partitions)
    from types y where o.shard = 'u:~topic' and y.type = '~topic' and y.type = any(every)
      and o.dead is null;
  perform move_follows(every, moving);
  if made > 0 then
    perform pg_notify(current_schema() || ':all', '[["shards",null,null]]');
  end if;
  return query select y.type, y.partitions from types y where y.type = any(every);
end $$;
