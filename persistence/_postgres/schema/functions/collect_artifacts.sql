-- Delete artifacts without pins that were last stored or unpinned at least `grace` ago, oldest first: at most `most`,
-- up to the one that reaches 256 MiB in all. Also delete uploads that did not finish. Returns the number of both.
-- Storing and pinning write the artifact's row, so the condition is checked again under the row lock. The bytes of an
-- artifact without chunks are an object in another store, named after its upload: a row of `artifact_uploads` with
-- the time -infinity asks a host that has access to that store to remove it.
create or replace function collect_artifacts(grace interval, most int) returns int
language plpgsql set search_path from current set enable_seqscan = off as $$
declare before timestamptz := clock_timestamp() - grace; taken int;
begin
  with due as materialized (
    select o.ctid as place, o.at, o.size_bytes from artifacts o where o.pins = 0 and o.at <= before
      order by o.at limit most for update skip locked),
  gone as (
    delete from artifacts a where a.ctid = any(array(
        select k.place from (
            select o.place, sum(o.size_bytes) over (order by o.at, o.place) - o.size_bytes as earlier
              from due o) k
          where k.earlier < 268435456))
      returning a.upload, a.chunk_bytes),
  objects as (
    insert into artifact_uploads as u (upload, at) select g.upload, '-infinity' from gone g where g.chunk_bytes = 0
      on conflict (upload) do update set at = excluded.at),
  dead as (
    delete from artifact_uploads u where u.ctid = any(array(
        select o.ctid from artifact_uploads o where o.at <= before and not starts_with(o.upload, 'object:')
          limit least(most, 20) for update skip locked))
      returning u.upload),
  chunks as (
    delete from artifact_chunks c where c.upload = any(array(
      select g.upload from gone g union all select d.upload from dead d)))
  select (select count(*) from gone) + (select count(*) from dead) into taken;
  return taken;
end $$;
