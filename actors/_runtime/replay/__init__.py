"""The rules of replay, without I/O: docs/replay.md.

In: a run's log, and the calls of its branches. Out: hit or miss, the next branch, the verdict on an attempt.
Above: `journal`. Below: `loop`.
"""
