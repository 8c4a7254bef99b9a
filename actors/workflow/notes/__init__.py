"""The memory effects of graphs: notes, search, tags, compaction, and rehydration of archived messages.

An effect gets a node's request and the run. It returns a result and the changes of the vars, which the driver
records together. Bytes are stored in an artifact store. The index of a run's memory is in its vars
(`_runtime.memory_spans`). It has an object for each artifact, a *span*.

- `spans`, `messages`: pure functions for the index and its filters, and for the messages of a context.
- `payloads`: the reader of a request's payload.
- `archive`: the artifacts. `owners`: the runs that own memory. `requests`: a request.
- `notes`, `queries`, `rehydration`, `compaction`: the effects. `evidence`: data from tools.
- `effects`: all effects, in the form that drivers use.
"""
