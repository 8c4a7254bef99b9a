-- A collection knows the embedder that its embeddings are of; null: none of its writers had a name. Hosts of the
-- release before keep working, and leave it as it is.
alter table vector_collections add column if not exists embedder text;
