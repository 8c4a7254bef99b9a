"""The steps of a flow run: the records of its ledger, each with the run's state before and after it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.rows import RunRow
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.step_record import verify_ledger_chain
from actors.runtime.runtime import Runtime
from actors.workflow.hosted.ledger_feed import LedgerPlace, begin_of_generation
from actors.workflow.hosted.step_entry import Folded
from actors.workflow.machine.branches import seen_at
from actors.workflow.machine.variables import LIMITS, RUNTIME, changes

WHOLE: Final = 2_000
"""A log of up to this many entries is read whole; of a longer one, a part between ``run.continued`` entries."""
_OWN: Final = (RUNTIME, LIMITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStep:
    """A record of the ledger.

    Attributes:
        place: The record's position in the log.
        record: See `StepRecord`.
        before: The run's state before the record; None if the record starts the run.
        after: The run's state after the record.
    """

    place: LedgerPlace
    record: dict[str, Any]
    before: RunState | None
    after: RunState

    @property
    def delta(self) -> dict[str, Any]:
        """The change of the run's state."""
        return self.record.get("delta") or {}

    @property
    def effect(self) -> str:
        """The type of the record's effect; empty if it has none."""
        return str((self.record.get("effect") or {}).get("type") or "")

    @property
    def is_start(self) -> bool:
        """True if the record starts the run."""
        return "start" in self.delta

    @property
    def ends_a_step(self) -> bool:
        """True if the record completes a node's step."""
        is_move = "seq" in self.delta and "joined" not in self.delta
        return is_move and self.record["status"] == "completed"

    @property
    def vars(self) -> dict[str, Any]:
        """The vars after the record, as its branch sees them."""
        return _seen(self.after, self.delta)

    def changed(self) -> list[tuple[str, bool, Any, bool, Any]]:
        """Return the changed vars: path, and whether the path existed before and after, with which values."""
        before = {} if self.before is None else _seen(self.before, self.delta)
        return [
            (".".join(path), _has(before, path), _at(before, path), is_there, value)
            for path, value, is_there in changes(before, self.vars)
            if path[0] not in _OWN
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPart:
    """Consecutive steps of a run.

    Attributes:
        steps: The steps.
        prior: The entry before the part; None if the part starts the run.
        later: The entry after the part; None if the part has the run's last step.
    """

    steps: tuple[LedgerStep, ...]
    prior: int | None
    later: int | None

    def chain(self) -> tuple[bool, int | None]:
        """Return whether the records' hash chain is intact, and the index of the first bad record, from 0."""
        report = verify_ledger_chain([one.record for one in self.steps])
        bad = [
            one["index"]
            for one in report["errors"]
            if self.prior is None or one["index"] > 0 or one["type"] != "prev_hash_mismatch"
        ]
        return not bad, bad[0] if bad else None


async def read_part(runtime: Runtime, row: RunRow, at: LedgerPlace | None) -> LedgerPart:
    """Return all steps of a run, or of a long run the part around a position; by default its end.

    Raises:
        RunSweptError: The run's log was deleted.
    """
    if row.last_seq < WHOLE:
        return await _read(runtime, row.run_id, 0, is_long=False)
    seq = row.last_seq if at is None else min(at.seq, row.last_seq)
    part = await _read_generation(runtime, row.run_id, seq)
    if not part.steps and part.prior is not None:  # the generation has no step yet
        part = replace(await _read_generation(runtime, row.run_id, part.prior), later=None)
    return part


async def _read_generation(runtime: Runtime, run_id: RunId, seq: int) -> LedgerPart:
    begin = await begin_of_generation(runtime, run_id, seq)
    return await _read(runtime, run_id, begin, is_long=True)


async def _read(runtime: Runtime, run_id: RunId, begin: int, *, is_long: bool) -> LedgerPart:
    """Return the steps from an entry on; of a long run up to the next ``run.continued``."""
    folded, steps, later = Folded(), list[LedgerStep](), None
    async for entry in runtime.entries(run_id, from_seq=begin):
        if is_long and entry.seq > begin and entry.kind == K.RUN_CONTINUED:
            later = entry.seq
            break
        before = folded.state
        for n, record in enumerate(folded.added(entry)):
            assert folded.state is not None
            place, after = LedgerPlace(entry.seq, n), folded.state
            steps.append(LedgerStep(place=place, record=record, before=before, after=after))
            before = after
    return LedgerPart(steps=tuple(steps), prior=begin - 1 if begin else None, later=later)


def _seen(state: RunState, delta: dict[str, Any]) -> dict[str, Any]:
    return (seen_at(state, tuple(delta.get("branch") or ())) or state).vars


def _at(variables: dict[str, Any], path: list[str]) -> Any:
    found: Any = variables
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _has(variables: dict[str, Any], path: list[str]) -> bool:
    *above, last = path
    found = _at(variables, above)
    return isinstance(found, dict) and last in found
