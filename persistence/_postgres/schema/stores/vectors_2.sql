-- The embedder that made a collection's embeddings; null if none of its writers had a name. Hosts of the previous
-- release keep working and leave the column unchanged.
alter table vector_collections add column if not exists embedder text;
