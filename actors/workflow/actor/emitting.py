"""The effect EMIT_EVENT of a run that is an agent's run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from actors.kernel.workflow.effects import EffectOutcome
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.runtime.verbs.graph import GraphVerbs
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.event_keys import event_from, key_of_payload

MOST_NAMED: Final = 1000
"""Maximum number of runs that the record of an emission names. The record counts all of them."""


async def emitted(verbs: GraphVerbs, run: RunState, opened: OpenStep) -> EffectOutcome:
    """Answer all waits for an event; return the outcome of the effect that emitted it."""
    payload = opened.effect.payload
    try:
        key = key_of_payload(run, payload)
    except GraphError as exc:
        return EffectOutcome.failed(str(exc), retryable=False)
    id_ = str(payload.get("event_id") or payload.get("id") or opened.key)
    event = event_from(payload, id_, run.run_id)
    return EffectOutcome.completed(report(id_, key, await verbs.emit(key, event)))


def report(id_: str, key: str, heard: Sequence[str]) -> dict[str, Any]:
    """Return the report of an emission."""
    return {
        "event_id": id_,
        "wait_key": key,
        "delivered": len(heard),
        "resumed": [*heard[:MOST_NAMED]],
    }
