"""The runtime, in rooms. No driver is imported here: those are in `broker` and `persistence`.

From the top down; a room may see those below it. `client`, `delivery`, `sharding` and `schedules` stand side
by side; only `parts` uses the in-memory store.

- `runtime`: `Runtime` itself. `host_parts` holds what runs on a host, and starts and stops it in order.
- `parts`: parts that a program may pass instead of a store (event log, inbox, journal, …), and the one
  store made of them.
- `client`: the API for programs and external clients.
- `delivery`: messages from and to the broker, posts to followers. `delivery/mail_service.py` writes messages
  into rows, then acknowledges them to the broker.
- `sharding`: the shards that this host owns, and the reads when it takes one over.
- `schedules`: messages that are sent at an instant or by cron.
- `worker`: the agents of a host: mailboxes, the ready queue, the executions.
- `execution`: one execution of a run, from its load until it ends, suspends or is given up.
- `verbs`: `ctx`, which an agent's code uses, and its verbs. `decorator` (`@agent`) is above it, `registry`
  (the types, and agents that are one function) below.
- `journal`: the write path from a run's entries to rows.
- `replay`: the rules of docs/replay.md, without I/O.
- `loop`: tasks, clocks, timers, threads, and hints inside a host (`notifications`).
- `telemetry`: spans and counters. `tracing` is another name for its `spans`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._runtime.replay.branches import Selected
    from actors._runtime.runtime import Runtime
    from actors._runtime.verbs.call import artifact_store
    from actors._runtime.verbs.effects import idempotency_key
    from actors._runtime.verbs.run_context import RunContext
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._runtime.verbs.run_context": ("RunContext",),
            "actors._runtime.replay.branches": ("Selected",),
            "actors._runtime.verbs.call": ("artifact_store",),
            "actors._runtime.verbs.effects": ("idempotency_key",),
            "actors._runtime.runtime": ("Runtime",),
        },
    )

__all__ = ["RunContext", "Runtime", "Selected", "artifact_store", "idempotency_key"]
