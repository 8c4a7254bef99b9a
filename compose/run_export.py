"""Runs as a file: what a store holds of a conversation, one JSON object a line, whole or refused.

Version 1: a head ``{"callboard_export": 1, …}``; for each run a line ``run``, its log as lines
``entry`` and what it was given but has not begun with as lines ``message``; at last a line ``end`` that
counts them, so that a file that was cut off is noticed. Content is included: payloads, results,
errors. Nothing here says where the servers are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors.errors import ContractError, RunSweptError
from actors.kernel.agent.supervision import Supervision
from actors.kernel.runtime.commit import RunRow
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.store import RunStore

VERSION: Final = 1
MAX_RUNS: Final = 10_000
"""Of one export; a larger tree is exported by its subtrees."""

Line = dict[str, Any]


class ExportError(ContractError):
    """A file is no export, or not a whole one."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        super().__init__(file, line, problem)
        self.file, self.line, self.problem = file, line, problem

    @override
    def __str__(self) -> str:
        return (
            f"{self.file}, line {self.line}: {self.problem}; export it with: callboard export RUN"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """One run of an export.

    Attributes:
        row: As stored; result and error are those of the log.
        entries: Its whole log.
        messages: What it was given and has not begun with, in their stored form.
    """

    row: RunRow
    entries: tuple[RunLogEntry, ...] = ()
    messages: tuple[dict[str, JsonValue], ...] = ()


@dataclass(slots=True)
class Counted:
    """How much an export holds."""

    runs: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Exporter:
    """Reads runs from a store, for a file.

    Attributes:
        store: Where they are.
        counted: What was given out so far.
    """

    store: RunStore
    counted: Counted = field(default_factory=Counted)

    async def lines(self, first: RunRow, *, tree: bool, at: datetime) -> AsyncIterator[Line]:
        """Yield the lines of an export of a run, and with `tree` of all runs below it.

        A run that goes on meanwhile is exported as it is when its turn comes.

        Raises:
            RunSweptError: Its log is not kept any more. Swept runs below it are left out.
            ContractError: The tree has more than 10,000 runs.
        """
        if first.swept:
            raise RunSweptError(first.run_id, first.status.value)
        yield {
            "callboard_export": VERSION, "run": first.run_id, "tree": tree,
            "exported_at": at.isoformat(), "content": "included",
        }  # fmt: skip
        waiting = [first]
        while waiting:
            row = waiting.pop(0)
            if self.counted.runs == MAX_RUNS:
                problem = f"the tree of run {first.run_id} has more than {MAX_RUNS} runs"
                raise ContractError(f"{problem}: export its children one by one")
            async for line in self._run(row):
                yield line
            if tree:
                children = await self.store.children(row.run_id)
                waiting.extend(child for child in children if not child.swept)
        yield {"line": "end", "runs": self.counted.runs, "entries": self.counted.entries}

    async def _run(self, row: RunRow) -> AsyncIterator[Line]:
        self.counted.runs += 1
        yield {"line": "run", **_row_to_json(row)}
        async for entry in self.store.entries(row.run_id):
            self.counted.entries += 1
            yield {
                "line": "entry", "run": row.run_id, "seq": entry.seq, "at": entry.ts.isoformat(),
                "kind": entry.kind, "position": entry.position, "payload": entry.payload,
            }  # fmt: skip
        for loaded in await self.store.load([row.run_id]):
            for arrived in loaded.messages:
                yield {"line": "message", "run": row.run_id, "message": arrived.message.to_json()}


def _row_to_json(row: RunRow) -> Line:
    terms = None if row.supervision is None else row.supervision.model_dump(mode="json")
    policy = row.retry_policy
    return {
        "run": row.run_id, "agent": str(row.agent_id), "status": row.status.value,
        "priority": row.priority, "attempt": row.attempt,
        "retry_policy": None if policy is None else policy.model_dump(mode="json"),
        "parent": row.parent, "root": row.root, "depth": row.depth, "parked": row.parked,
        "version": row.version, "trace": row.trace, "supervision": terms,
        "created_at": row.created_at.isoformat() if row.created_at is not None else None,
    }  # fmt: skip


def read_export(lines: Iterable[str], *, file: str) -> list[ExportedRun]:
    """Return the runs of an export, the first one first.

    Raises:
        ExportError: It is none, of an unknown version, or was cut off; names file and line.
    """
    reading = _Reading(file)
    for number, text in enumerate(lines, start=1):
        if text.strip():
            reading.add(number, text)
    return reading.done()


class _Reading:
    def __init__(self, file: str) -> None:
        self._file, self._number = file, 1
        self._has_head = self._has_end = False
        self._runs: dict[str, ExportedRun] = {}
        self._entries: dict[str, list[RunLogEntry]] = {}
        self._messages: dict[str, list[dict[str, JsonValue]]] = {}

    def add(self, number: int, text: str) -> None:
        self._number = number
        try:
            line: Line = json.loads(text)
        except ValueError as exc:
            raise self._wrong("it is not a JSON object") from exc
        if not isinstance(line, dict):
            raise self._wrong("it is not a JSON object")
        kind = line.get("line")
        if not self._has_head:
            if line.get("callboard_export") != VERSION:
                found = line.get("callboard_export", "none")
                raise self._wrong(f"it is no export of version {VERSION} (found: {found})")
            self._has_head = True
            return
        try:
            self._take(kind, line)
        except (KeyError, TypeError, ValueError) as exc:
            raise self._wrong(f"a line {kind!r} does not fit ({exc})") from exc

    def _take(self, kind: object, line: Line) -> None:
        match kind:
            case "run":
                row = _row_of(line)
                self._runs[row.run_id] = ExportedRun(row=row)
                self._entries[row.run_id], self._messages[row.run_id] = [], []
            case "entry":
                entry = RunLogEntry(
                    RunId(line["run"]), int(line["seq"]), str(line["kind"]), str(line["position"]),
                    dict(line["payload"]), datetime.fromisoformat(line["at"]),
                )  # fmt: skip
                self._entries[entry.run_id].append(entry)
            case "message":
                self._messages[line["run"]].append(dict(line["message"]))
            case "end":
                count = sum(map(len, self._entries.values()))
                if (line["runs"], line["entries"]) != (len(self._runs), count):
                    raise self._wrong("some of its lines are missing")
                self._has_end = True
            case _:
                raise self._wrong(f"a line {kind!r} is not known")

    def _wrong(self, problem: str) -> ExportError:
        return ExportError(self._file, self._number, problem)

    def done(self) -> list[ExportedRun]:
        if not self._has_head:
            raise self._wrong("it is empty")
        if not self._has_end:
            raise self._wrong("it was cut off: the line 'end' is missing")
        for run_id, entries in self._entries.items():
            if any(after.seq != before.seq + 1 for before, after in pairwise(entries)):
                raise self._wrong(f"the log of run {run_id} has gaps")
        return [
            replace(
                run, entries=tuple(self._entries[run_id]), messages=tuple(self._messages[run_id])
            )
            for run_id, run in self._runs.items()
        ]


def _row_of(line: Line) -> RunRow:
    terms, created = line.get("supervision"), line.get("created_at")
    policy = line.get("retry_policy")
    return RunRow(
        RunId(line["run"]), AgentId.parse(line["agent"]), RunStatus(line["status"]),
        priority=int(line["priority"]), attempt=int(line["attempt"]),
        retry_policy=None if policy is None else RetryPolicy.model_validate(policy),
        parent=_run_id(line.get("parent")), root=_run_id(line.get("root")),
        depth=int(line.get("depth") or 0), parked=line.get("parked"), version=line.get("version"),
        trace=line.get("trace"), created_at=datetime.fromisoformat(created) if created else None,
        supervision=None if terms is None else Supervision.model_validate(terms),
    )  # fmt: skip


def _run_id(text: str | None) -> RunId | None:
    return None if text is None else RunId(text)
