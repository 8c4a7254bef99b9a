"""Hand-over of commits to readers of logs and of sessions, so that these need not read them.

A statement of commits returns the instants and the facts that it has written, if somebody reads them. Texts of
entries are known here. A commit whose answer is lost hands over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from pydantic_core import from_json

from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.stores.conversations import SessionFact
from persistence.postgres.commits.encode import columns
from persistence.postgres.commits.unit import Unit
from persistence.postgres.connection.link import Row

Asked: TypeAlias = "Sequence[Sequence[object]]"
"""The arguments of `written`."""

MAX_HANDED_CHARS: Final = 64 * 1024
"""Largest text of the entries that a commit hands over. Readers read larger commits."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Written:
    """Answer of a statement about a commit that it has written.

    Attributes:
        at: The instant of the commit's entries; None: nobody reads them.
        facts: The last facts of the commit's session, by number.
    """

    at: datetime | None = None
    facts: list[SessionFact] = field(default_factory=list)

    def take(self, row: Row) -> None:
        """Take a row of `written`."""
        at = _EPOCH + timedelta(microseconds=int(row["detail"]))
        if row["outcome"] == "entries":
            self.at = at
        else:
            run_id = RunId(row["message_id"])
            fact = SessionFact(row["actual"], row["sender"], run_id, row["arrival"], at)
            self.facts.append(fact)


@dataclass(frozen=True, slots=True)
class HandOver:
    """The readers to whom commits are handed over.

    Attributes:
        is_log_read: Returns True if somebody reads the log of a run, here or in another process.
        is_session_read: Returns True if somebody reads the facts of a session here.
        on_entries: Called with the new entries of a log; with none if they have to be read.
        on_facts: Called with new facts of a session; with none if they have to be read.
    """

    is_log_read: Callable[[RunId], bool]
    is_session_read: Callable[[AgentId], bool]
    on_entries: Callable[[RunId, Sequence[RunLogEntry]], None]
    on_facts: Callable[[AgentId, Sequence[SessionFact]], None]

    def asked(self, units: Sequence[Unit]) -> Asked | None:
        """Return what has to be asked of a statement that writes these commits; None: nobody reads them."""
        rows = [row for i, unit in enumerate(units, 1) if (row := self._asked_of(i, unit))]
        return columns(rows, 5) if rows else None

    def _asked_of(self, number: int, unit: Unit) -> tuple[object, ...] | None:
        lease, commit = unit.first.lease, unit.calls[-1].args.commit
        facts = () if commit is None or commit.session is None else commit.session.facts
        is_log_read = bool(unit.rows) and self.is_log_read(lease.run_id)
        if is_log_read and sum(len(text) for _, _, text in unit.rows) > MAX_HANDED_CHARS:
            is_log_read = False
        log = (lease.run_id, unit.last) if is_log_read else (None, None)
        if facts and self.is_session_read(lease.agent_id):
            return (number, *log, str(lease.agent_id), len(facts))
        return (number, *log, None, None) if is_log_read else None

    def give(self, unit: Unit, written: Written | None) -> None:
        """Notify the readers of a commit, and hand over what is known of it."""
        at = None if written is None else written.at
        self.on_entries(unit.first.lease.run_id, () if at is None else _entries(unit, at))
        commit = unit.calls[-1].args.commit
        if commit is not None and commit.session is not None:
            self.on_facts(commit.lease.agent_id, () if written is None else written.facts)


def _entries(unit: Unit, at: datetime) -> tuple[RunLogEntry, ...]:
    run_id, first, said = unit.first.lease.run_id, unit.first.expected + 1, _said(unit)
    return tuple(
        RunLogEntry(run_id, seq, kind, position, from_json(text), at, said)
        for seq, (kind, position, text) in enumerate(unit.rows, first)
    )


def _said(unit: Unit) -> Mapping[str, ChatMessage] | None:
    """Return the turns of a commit that are nodes of a session, as readers would read them.

    None: they have to be read, because they are cleared or large.
    """
    rows = None if unit.parts is None else unit.parts.transcripts
    if rows is None or rows.keys().isdisjoint(("turns", "artifacts", "clear")):
        return {}
    key = unit.first.lease.agent_id.key
    bodies = {
        str(row["id"]): str(row["body"])
        for row in rows.get("turns", ())
        if row is not None and row["session"] == key
    }
    if "clear" in rows or "artifacts" in rows or sum(map(len, bodies.values())) > MAX_HANDED_CHARS:
        return None
    return {id_: ChatMessage.model_validate_json(body) for id_, body in bodies.items()}
