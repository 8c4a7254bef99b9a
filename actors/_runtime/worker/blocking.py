"""Finds out which agent blocks the event loop, from the stack of the loop's thread. For another thread."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Final

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.runs import Blocker
from actors._runtime.execution.execution import Execution
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.run_context import RunContext
from actors._runtime.worker.worker import Worker

_OURS: Final = frozenset({"actors", "broker", "compose", "persistence"})


def blocker_in(frame: FrameType | None, worker: Worker) -> Blocker:
    """Return the execution of this frame, the innermost of a thread that runs meanwhile."""
    code_line, in_doubt = _code_line(frame), worker.in_doubt_elsewhere
    owner = _owner_of(frame)
    if owner is None:
        return Blocker(place=code_line, in_doubt=in_doubt)
    agent_id, run_id = owner
    lease = worker.lease_of(agent_id)
    shard = lease.shard if lease is not None else None
    return Blocker(
        place=code_line, agent_id=agent_id, run_id=run_id, shard=shard, in_doubt=in_doubt
    )


def _owner_of(frame: FrameType | None) -> tuple[AgentId, RunId] | None:
    """Return whose code it is: every way into an agent's code has one of these at hand."""
    for caller_frame in _frames(frame):
        for value in list(caller_frame.f_locals.values()):
            # `type`: asking an author's object for its class may execute its code, here.
            type_ = type(value)
            if type_ is RunContext or type_ is RunState:
                return value.agent_id, value.run_id
            if type_ is Execution:
                return value.lease.agent_id, value.lease.run_id
    return None


def _code_line(frame: FrameType | None) -> str:
    """Return the innermost line that an agent's author wrote, else the innermost of all."""
    task = itertools.takewhile(lambda f: _package(f) != "asyncio", _frames(frame))
    line_frame = next((f for f in task if not _is_library(f)), frame)
    if line_frame is None:
        return "unknown"
    return (
        f"{line_frame.f_code.co_qualname} ({line_frame.f_code.co_filename}:{line_frame.f_lineno})"
    )


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_library(frame: FrameType) -> bool:
    package = _package(frame)
    is_installed = "site-packages" in frame.f_code.co_filename
    return is_installed or package in _OURS or package in sys.stdlib_module_names


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
