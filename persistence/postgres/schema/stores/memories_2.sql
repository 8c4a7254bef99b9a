-- A memory is found by its id, and by no index that has the tenant alone: where an empty table was counted, a planner
-- takes the tenant for as good as tenant and scope, and reads all of a tenant's memories for those of one scope.
create unique index if not exists memories_by_id on memories (id, (tenant || ''));
drop index if exists memories_ids;
