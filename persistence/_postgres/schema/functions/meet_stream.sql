-- Return the stream's record, with the furthest cursor of its epoch. A name other than the present one starts a new
-- epoch: cursors belong to one stream at a time. `p_first` is the first message that the stream has.
create or replace function meet_stream(p_name text, p_created timestamptz, p_first bigint default null)
returns table (epoch bigint, created timestamptz, sequence bigint, at timestamptz, purged bigint)
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
  if not exists (select 1 from streams s where s.name = p_name and s.epoch = present_stream_epoch()) then
    perform lock_stream();
    insert into streams (name, created, epoch, purged)
      values (p_name, p_created, epoch_behind(coalesce(present_stream_epoch(), 0)), 1)
      on conflict (name) do update set created = excluded.created, epoch = excluded.epoch,
          purged = case when streams.created = excluded.created then streams.purged else 1 end
        where streams.epoch < present_stream_epoch();
  end if;
  update streams s set purged = greatest(p_first, 1)
    where s.name = p_name and s.purged is null and p_first is not null;
  return query select s.epoch, s.created, c.sequence, c.at, coalesce(s.purged, 1) from streams s
    left join lateral (select * from cursors c where c.stream_epoch = s.epoch
      order by c.sequence desc, c.at nulls last limit 1) c on true
    where s.name = p_name;
end $$;
