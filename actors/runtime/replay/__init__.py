"""The rules of replay, without I/O: docs/replay.md.

In: a run's log, and what its branches want. Out: hit or miss, which branch goes on, what an ending means.
Above: `journal`. Below: `loop`.
"""
