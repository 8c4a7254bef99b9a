"""A log in the model: entries in their essential form, folded by position.

Written from docs/replay.md, "Hit or miss"; it shares no code with the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BEGINS: Final = ("effect.intent", "tool.called", "timer.set", "ask.sent")
NUMBERED: Final = ("msg.sent", "ask.sent", "child.spawned")
PAID: Final = "~"
"""Positions with it are never strict."""
RUN_KINDS: Final = ("run.suspended", "run.resumed")


@dataclass(frozen=True, slots=True)
class Line:
    """One entry, without the fields that the model need not predict. `data` holds the essential payload."""

    kind: str
    position: str
    data: dict[str, Any]
    at: float = 0.0


@dataclass(slots=True)
class Record:
    """The record of a position. Numbers are seqs."""

    begin: int | None = None
    end: int | None = None
    sent: int = 0
    """Number of messages and children made here."""
    abandoned: int | None = None


class DivergenceError(Exception):
    """The code's call differs from a strict entry; the run parks."""


@dataclass(slots=True)
class Memory:
    """The fold of one log at the start of an attempt."""

    log: Sequence[Line]
    start: int = 0
    generation: int = 0
    boot: Any = None
    attempts: int = 0
    inputs: list[str] = field(default_factory=list)
    """Ids of the messages that the run started with and has not released."""
    counted: int = 0
    """Failed attempts that did not split the run's messages."""
    records: dict[str, Record] = field(default_factory=dict)
    unasked: set[str] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    failures: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, log: Sequence[Line]) -> Memory:
        """Return the fold of the log's last generation."""
        memory = cls(log)
        for seq, line in enumerate(log):
            if line.kind == "run.continued":
                memory.start, memory.generation = seq, line.data["generation"]
                memory.boot = line.data["input"]
        for seq in range(memory.start, len(log)):
            memory._read(seq, log[seq])
        for position, record in memory.records.items():
            if PAID in position:
                continue
            seen = record.begin if record.end is None else record.end
            if seen is not None and memory.is_strict(seen) and seen not in memory.void:
                memory.unasked.add(position)
        return memory

    def _read(self, seq: int, line: Line) -> None:
        if line.kind == "run.parked":
            before = seq - 1
            while self.log[before].kind == "effect.abandoned":
                self.records[self.log[before].position].abandoned = None
                before -= 1
        if line.position.startswith("in."):
            self.inputs.append(line.data["id"])
        if line.kind == "run.attempt_failed":
            del self.inputs[line.data["kept"] or len(self.inputs) :]
            self.attempts += 1
            self.counted += line.data["kept"] is None
            self.failures.append((seq, line.data["retry_from"]))
            if line.data["ending"]:
                self.void.add(line.data["retry_from"])
        if not line.position or line.position.startswith("in."):
            return
        record = self.records.setdefault(line.position, Record())
        record.sent += line.kind in NUMBERED
        if line.kind == "effect.abandoned":
            record.abandoned = seq
        elif line.kind in BEGINS:
            record.begin, record.end, record.abandoned = seq, None, None
        else:
            record.end = seq
            if record.begin is not None and not _belong(self.log[record.begin], line):
                record.begin = record.abandoned = None

    def is_strict(self, seq: int) -> bool:
        """Return whether every attempt that failed after the entry has to repeat it."""
        return all(seq <= retry_from for at, retry_from in self.failures if at > seq)

    def pool_sets(self, key: str, after: int) -> bool:
        """Return whether a later attempt may have found this key as a failed attempt left it."""
        return any(
            line.kind == "state.set" and line.data["key"] == key and not self.is_strict(seq)
            for seq, line in enumerate(self.log)
            if seq > max(after, self.start)
        )

    def find(self, position: str, kinds: Sequence[str], digest: str) -> Record | None:
        """Return the record of this call, None for a miss.

        Raises: DivergenceError: A strict entry is of another call.
        """
        record = self.records.get(position)
        if record is None:
            return None
        self.unasked.discard(position)
        seqs = [seq for seq in (record.begin, record.end) if seq is not None]
        agree = all(
            self.log[seq].kind in kinds and self.log[seq].data.get("hash", digest) == digest
            for seq in seqs
        )
        if agree:
            return record
        if any(self.is_strict(seq) and seq not in self.void for seq in seqs[-1:]):
            raise DivergenceError(position)
        return None


def _belong(begin: Line, end: Line) -> bool:
    """Return whether two entries of one position are of one call, not of different calls of two attempts."""
    pairs = {
        "effect.intent": ("effect.result", "llm.call"),
        "tool.called": ("tool.result",),
        "timer.set": ("timer.fired", "msg.received"),
        "ask.sent": ("ask.replied", "ask.timeout", "effect.result"),
    }
    digest = begin.data["hash"]
    return end.kind in pairs[begin.kind] and end.data.get("hash", digest) == digest
