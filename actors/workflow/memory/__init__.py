"""The memory effects of graphs: notes, search, tags, compaction, and what was archived back in the context.

A request of a node enters, with its run as it is; a result leaves, with the changes of the vars, which the
driver records together. Bytes go to an artifact store. The index of a run's memory is in its vars
(`_runtime.memory_spans`): an object for each artifact, a *span*.

- `spans`, `messages`: pure. The index and its filters; the messages of a context.
- `payloads`: what a request says, or why it cannot be read.
- `archive`: the artifacts. `owners`: the runs whose memory is meant. `requests`: a request.
- `notes`, `queries`, `rehydration`, `compaction`: the effects. `evidence`: what tools brought.
- `effects`: all of them, as drivers use them.
"""
