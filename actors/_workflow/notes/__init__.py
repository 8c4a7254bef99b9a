"""The memory effects of graphs: notes, search, tags, compaction, and rehydration of archived messages.

An effect gets a node's request and the run. It returns a result and the changes of the vars, which the driver
records together. Bytes are stored in an artifact store. The index of a run's memory is in its vars
(`_runtime.memory_spans`). It has an object for each artifact, a *span*.

- `messages`: pure functions for the messages of a context. `spans`: the index, its artifacts and its owners.
- `effects`: all effects, in the form that drivers use; those that note, search and tag. `host_memory`:
  memory that runs share on hosts.
- `compaction`, `evidence`: the effects that shorten, and that keep data from tools.
"""
