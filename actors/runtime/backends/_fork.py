"""Runs in memory that go on from another run's log."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from actors.errors import ContractError, UnknownRunError
from actors.kernel.runtime.commit import ForkPoint, NewRun
from actors.kernel.runtime.ids import run_id_of_fork
from actors.kernel.runtime.store import Submitted
from actors.runtime.backends._tree import own_terms

if TYPE_CHECKING:
    from actors.kernel.runtime.ids import RunId
    from actors.runtime.backends._rows import MemoryRows


def fork_run(rows: MemoryRows, run_id: RunId, *, at_seq: int, copy: int) -> Submitted:
    """See `RunStore.fork`."""
    source = rows.record(run_id)
    new_id = run_id_of_fork(run_id, at_seq, copy)
    if new_id in rows.runs:
        return Submitted(new_id, None)
    if source.swept:
        raise UnknownRunError(run_id)
    if not 0 <= at_seq <= source.last_seq:
        msg = f"run {run_id} has entries 0 to {source.last_seq}, none with seq {at_seq}"
        raise ContractError(msg)
    cause = source.cause
    terms = own_terms(cause.supervision, new_id)
    new = NewRun(
        new_id, cause.agent_id, priority=cause.priority, retry_policy=cause.retry_policy,
        version=cause.version, trace=cause.trace, supervision=terms,
        fork=ForkPoint(run_id, at_seq),
    )  # fmt: skip
    deadline_s = terms.execution_budget.deadline_s if terms is not None else None
    if deadline_s is not None:
        new = replace(new, deadline_at=rows.clock.now() + timedelta(seconds=deadline_s))
    rows.create_run(new)
    return Submitted(new_id, None)
