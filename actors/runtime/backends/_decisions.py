"""Decisions of operators in the rows of the in-memory store: each one about an entry, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.runtime.commit import SignalOutcome
from actors.kernel.runtime.decisions import decided_seq, to_decide

if TYPE_CHECKING:
    from actors.runtime.backends._records import RunRecord


def decide(record: RunRecord, name: str, payload: bytes, message_id: str) -> int | SignalOutcome:
    """Note a decision and return the seq that it is about, or why it does not count."""
    loaded = record.loaded()
    now, about = to_decide(name, loaded.row, loaded.entries), decided_seq(name, message_id)
    about = now if about is None else about
    known = None if about is None else record.decisions.get((name, about))
    if about is None or about != now or known is not None:
        return SignalOutcome(False, record.cause.agent_id, same=known == payload)
    record.decisions[name, about] = payload
    return about
