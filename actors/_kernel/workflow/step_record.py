"""A record of a ledger: one half of a step that has an effect, or a whole step that has none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from actors._kernel.workflow.durable import (
    WRAPPED,
    durable_copy,
    json_text,
    new_id,
    plain_copy,
    utc_now_iso,
)
from actors._kernel.workflow.effects import Effect, StepStatus, WaitState
from actors._kernel.workflow.run_state import RunState

_UNHASHED = ("record_hash", "signature")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A record, as it is appended and never changed.

    Attributes:
        run_id: The run.
        step_id: The same for all records of one attempt of one step.
        node_id: The node.
        status: STARTED, or how the attempt ended.
        effect: The effect, by `Effect.to_dict`, or None if the step has none.
        result: What came of it: JSON data.
        error: The message of a failure.
        started_at: ISO 8601 in UTC.
        ended_at: ISO 8601 in UTC; None for STARTED.
        actor_id: The run's actor.
        session_id: The run's session.
        attempt: From 1.
        idempotency_key: The name of this effect of this step: equal for all its attempts, also after a crash.
        delta: The change of the run's state, or None if there is none; see `actors._workflow.machine.records`.
        prev_hash: `record_hash` of the record before, in a chained ledger.
        record_hash: SHA-256 of all the others but `signature`.
        signature: Reserved.
        checked: True if its values are known to be JSON data that nothing changes any more. It is no part of
            the record. The machine sets it on records whose values it has checked.
    """

    run_id: str
    step_id: str
    node_id: str
    status: StepStatus
    effect: dict[str, Any] | None = None
    result: Any = None
    error: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    actor_id: str | None = None
    session_id: str | None = None
    attempt: int = 1
    idempotency_key: str | None = None
    delta: dict[str, Any] | None = None
    prev_hash: str | None = None
    record_hash: str | None = None
    signature: str | None = None
    checked: bool = field(default=False, compare=False, repr=False)

    @classmethod
    def start(
        cls,
        *,
        run: RunState,
        node_id: str,
        effect: Effect | None,
        attempt: int = 1,
        idempotency_key: str | None = None,
    ) -> StepRecord:
        """Return the first record of an attempt that begins now, with an id of its own."""
        return cls(
            run_id=run.run_id,
            step_id=new_id(),
            node_id=node_id,
            status=StepStatus.STARTED,
            effect=None if effect is None else effect.to_dict(),
            started_at=utc_now_iso(),
            actor_id=run.actor_id,
            session_id=run.session_id,
            attempt=attempt,
            idempotency_key=idempotency_key,
        )

    def finish_success(self, result: Any = None) -> StepRecord:
        """Return the record of this attempt's success, now."""
        return replace(
            self, status=StepStatus.COMPLETED, result=result, ended_at=utc_now_iso(), checked=False
        )

    def finish_failure(self, error: str) -> StepRecord:
        """Return the record of this attempt's failure, now."""
        return replace(
            self, status=StepStatus.FAILED, error=error, ended_at=utc_now_iso(), checked=False
        )

    def finish_waiting(self, wait: WaitState) -> StepRecord:
        """Return the record that this attempt waits, now."""
        result = {"wait": wait.to_dict()}
        return replace(
            self, status=StepStatus.WAITING, result=result, ended_at=utc_now_iso(), checked=False
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as ledgers keep it: checked JSON data, a copy.

        Raises:
            NotSerializableError: The path of what is not JSON data.
        """
        data = self.told()
        if self.checked:
            for name in _NESTED:
                data[name] = plain_copy(data[name])
        return data

    def told(self) -> dict[str, Any]:
        """Return what `to_dict` does, to be encoded at once: what is checked is not copied.

        Raises:
            NotSerializableError: The path of what is not JSON data.
        """
        values = self.values()
        if self.checked:
            return values
        data: dict[str, Any] = durable_copy(values, "record", deepest=WRAPPED)
        return data

    def values(self) -> dict[str, Any]:
        """Return the names and values of the record as they are: not checked, not copied."""
        values = dict(zip(FIELDS, _VALUES(self), strict=True))
        values["status"] = str(self.status)
        return values


FIELDS = tuple(f.name for f in fields(StepRecord) if f.name != "checked")
"""The names of a record's values, in their order."""
_VALUES = attrgetter(*FIELDS)
_NESTED = ("effect", "result", "delta")


def chained(record: dict[str, Any], prev_hash: str | None) -> dict[str, Any]:
    """Return the record as the next link after `prev_hash`, which is None for the first one."""
    linked_record = {**record, "prev_hash": prev_hash}
    return {**linked_record, "record_hash": hash_of(linked_record)}


def hash_of(record: dict[str, Any]) -> str:
    """Return the SHA-256 of a record in hexadecimal, over all but its own hash and signature."""
    return hashlib.sha256(hashed_text(record)).hexdigest()


def hashed_text(record: dict[str, Any]) -> bytes:
    """Return the text that the hash of a record is made of."""
    content = {name: value for name, value in record.items() if name not in _UNHASHED}
    return json_text(content)


def verify_ledger_chain(
    records: list[dict[str, Any]], *, head_hash: str | None = None
) -> dict[str, Any]:
    """Return a report on the chain of one run.

    It has ``ok``, ``count``, ``errors``, ``first_bad_index`` and ``head_hash``.

    Args:
        records: All records of the run, in order.
        head_hash: The hash of the last one, kept elsewhere: finds a ledger whose end was cut off, too.
    """
    errors: list[dict[str, Any]] = []
    prev_hash: str | None = None
    for index, record in enumerate(records):
        record_hash = record.get("record_hash")
        if not record_hash:
            errors.append({"index": index, "type": "missing_record_hash"})
        elif hash_of(record) != record_hash:
            errors.append({"index": index, "type": "record_hash_mismatch"})
        if record.get("prev_hash") != prev_hash and record_hash:
            errors.append({"index": index, "type": "prev_hash_mismatch"})
        prev_hash = record_hash
    if head_hash is not None and head_hash != prev_hash:
        errors.append({"index": len(records), "type": "head_hash_mismatch"})
    return {
        "ok": not errors,
        "count": len(records),
        "errors": errors,
        "first_bad_index": errors[0]["index"] if errors else None,
        "head_hash": prev_hash,
    }
