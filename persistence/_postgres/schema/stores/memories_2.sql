-- Memories are found by id, with an index that does not begin with the tenant. With statistics of an empty table the
-- planner estimates the tenant alone to be as selective as tenant and scope, and would read all memories of a tenant
-- for those of one scope.
create unique index if not exists memories_by_id on memories (id, (tenant || ''));
drop index if exists memories_ids;
