"""Exports of runs: a file with one JSON object on a line, which is read completely or refused.

Version 2 begins with a head ``{"callboard_export": 2, …}``. Each run has a line ``run``, its log as lines
``entry``, the messages that it has not begun with as lines ``message``, and the turns that its model calls
saw or added as lines ``turn``. The last line ``end`` has the numbers of these lines, so that a truncated file
is detected. Version 1 has no turns, and is read too. A file has content: payloads, results, errors, turns.
It does not have the servers' addresses. A replay needs no turns, which are for people.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from actors._kernel.agent.agent import Supervision
from actors._kernel.agent.transcript import Turn
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.stores.run_store import RunStore
from actors.errors import ContractError, Facts, RunSweptError
from compose._tools.history import SeenSession, add_seen, turn_of_json, turn_to_json

VERSION: Final = 2
READABLE: Final = (1, VERSION)
"""Versions of exports that `read_export` reads."""
MAX_RUNS: Final = 10_000
"""Greatest number of runs in one export. A larger tree must be exported by its subtrees."""

Line = dict[str, Any]


class ExportError(Facts, ContractError):
    """A file is not an export, or is not complete."""

    text = "{file}, line {line}: {problem}; export it with: callboard export RUN"
    file: str
    line: int
    problem: str


@dataclass(slots=True, kw_only=True)
class ExportedRun:
    """A run of an export.

    Attributes:
        row: The run's row, without result and error, which are in the log.
        entries: The run's whole log.
        messages: Messages that the run has not begun with, in their stored form.
        turns: Turns that the run's model calls saw or added, by session, oldest first.
    """

    row: RunRow
    entries: list[RunLogEntry] = field(default_factory=list)
    messages: list[dict[str, JsonValue]] = field(default_factory=list)
    turns: dict[str, list[Turn]] = field(default_factory=dict)


@dataclass(slots=True)
class Exporter:
    """A reader of runs in a store, which makes the lines of an export.

    Attributes:
        store: The store of the runs.
        runs: Number of runs that were exported so far.
        entries: Number of their log entries.
        turns: Number of their turns.
    """

    store: RunStore
    runs: int = 0
    entries: int = 0
    turns: int = 0

    async def lines(self, first: RunRow, *, tree: bool, at: datetime) -> AsyncIterator[Line]:
        """Yield the lines of an export of a run, and with `tree` of all runs below it.

        An open run is exported in its state at the time of the read. Swept runs below the first are left out.

        Raises:
            RunSweptError: The first run was swept, so that its log is removed.
            ContractError: The tree has more than 10,000 runs.
        """
        if first.swept:
            raise RunSweptError(first.run_id, first.status.value)
        yield {
            "callboard_export": VERSION,
            "run": first.run_id,
            "tree": tree,
            "exported_at": at.isoformat(),
            "content": "included",
        }
        queue = [first]
        while queue:
            row = queue.pop(0)
            if self.runs == MAX_RUNS:
                problem = f"the tree of run {first.run_id} has more than {MAX_RUNS} runs"
                raise ContractError(f"{problem}: export its children one by one")
            async for line in self._run(row):
                yield line
            if tree:
                children = await self.store.lists.children(row.run_id)
                queue.extend(child for child in children if not child.swept)
        yield {"line": "end", "runs": self.runs, "entries": self.entries, "turns": self.turns}

    async def _run(self, row: RunRow) -> AsyncIterator[Line]:
        self.runs += 1
        yield {"line": "run", **_row_to_json(row)}
        seen_sessions: dict[str, SeenSession] = {}
        async for entry in self.store.reads.entries(row.run_id):
            self.entries += 1
            add_seen(seen_sessions, entry)
            yield {"line": "entry", "run": row.run_id, **entry_to_json(entry)}
        for loaded_run in await self.store.reads.load([row.run_id]):
            for arrival in loaded_run.messages:
                yield {"line": "message", "run": row.run_id, "message": arrival.message.to_json()}
        for session, seen_session in seen_sessions.items():
            line_head = {"line": "turn", "of": row.run_id, "session": session}
            async for turn in seen_session.turns(
                self.store.data.transcripts, row.agent_id, session, row.run_id
            ):
                self.turns += 1
                yield {**line_head, **turn_to_json(turn)}


def entry_to_json(entry: RunLogEntry) -> Line:
    """Return a log entry as JSON data."""
    return {
        "seq": entry.seq,
        "at": entry.ts.isoformat(),
        "kind": entry.kind,
        "position": entry.position,
        "payload": entry.payload,
    }


def _row_to_json(row: RunRow) -> Line:
    supervision = None if row.supervision is None else row.supervision.model_dump(mode="json")
    policy = row.retry_policy
    return {
        "run": row.run_id,
        "agent": str(row.agent_id),
        "status": row.status.value,
        "priority": row.priority,
        "attempt": row.attempt,
        "retry_policy": None if policy is None else policy.model_dump(mode="json"),
        "parent": row.parent,
        "root": row.root,
        "depth": row.depth,
        "parked": row.parked,
        "version": row.version,
        "trace": row.trace,
        "supervision": supervision,
        "created_at": row.created_at.isoformat() if row.created_at is not None else None,
    }


def read_export(lines: Iterable[str], *, file: str) -> list[ExportedRun]:
    """Return the runs of an export in the order of the file. The exported run is first.

    Raises:
        ExportError: The file is not an export, has an unknown version, or is truncated. Names file and line.
    """
    reader = _ExportReader(file)
    for number, text in enumerate(lines, start=1):
        if text.strip():
            reader.add(number, text)
    return reader.finish()


class _ExportReader:
    def __init__(self, file: str) -> None:
        self._file, self._number = file, 1
        self._has_head = self._has_end = False
        self._runs: dict[str, ExportedRun] = {}

    def add(self, number: int, text: str) -> None:
        self._number = number
        try:
            line: Line = json.loads(text)
        except ValueError as exc:
            raise self._error("it is not a JSON object") from exc
        if not isinstance(line, dict):
            raise self._error("it is not a JSON object")
        kind = line.get("line")
        if not self._has_head:
            if line.get("callboard_export") not in READABLE:
                version = line.get("callboard_export", "none")
                versions = " or ".join(map(str, READABLE))
                raise self._error(f"it is not an export of version {versions} (found: {version})")
            self._has_head = True
            return
        try:
            self._add_line(kind, line)
        except (KeyError, TypeError, ValueError) as exc:
            raise self._error(f"a line {kind!r} does not fit ({exc})") from exc

    def _add_line(self, kind: object, line: Line) -> None:
        match kind:
            case "run":
                row = _row_of(line)
                self._runs[row.run_id] = ExportedRun(row=row)
            case "entry":
                entry = RunLogEntry(
                    RunId(line["run"]),
                    int(line["seq"]),
                    str(line["kind"]),
                    str(line["position"]),
                    dict(line["payload"]),
                    datetime.fromisoformat(line["at"]),
                )
                self._runs[entry.run_id].entries.append(entry)
            case "message":
                self._runs[line["run"]].messages.append(dict(line["message"]))
            case "turn":
                turns = self._runs[line["of"]].turns.setdefault(str(line["session"]), [])
                turns.append(turn_of_json(line))
            case "end":
                runs = self._runs.values()
                count = sum(len(run.entries) for run in runs)
                turn_count = sum(len(turns) for run in runs for turns in run.turns.values())
                stated_counts = (line["runs"], line["entries"], line.get("turns", 0))
                if stated_counts != (len(runs), count, turn_count):
                    raise self._error("some of its lines are missing")
                self._has_end = True
            case _:
                raise self._error(f"a line {kind!r} is not known")

    def _error(self, problem: str) -> ExportError:
        return ExportError(self._file, self._number, problem)

    def finish(self) -> list[ExportedRun]:
        if not self._has_head:
            raise self._error("it is empty")
        if not self._has_end:
            raise self._error("it was cut off: the line 'end' is missing")
        for run_id, run in self._runs.items():
            if any(after.seq != before.seq + 1 for before, after in pairwise(run.entries)):
                raise self._error(f"the log of run {run_id} has gaps")
        return list(self._runs.values())


def _row_of(line: Line) -> RunRow:
    supervision, created_at = line.get("supervision"), line.get("created_at")
    policy = line.get("retry_policy")
    return RunRow(
        RunId(line["run"]),
        AgentId.parse(line["agent"]),
        RunStatus(line["status"]),
        priority=int(line["priority"]),
        attempt=int(line["attempt"]),
        retry_policy=None if policy is None else RetryPolicy.model_validate(policy),
        parent=line.get("parent"),
        root=line.get("root"),
        depth=int(line.get("depth") or 0),
        parked=line.get("parked"),
        version=line.get("version"),
        trace=line.get("trace"),
        created_at=datetime.fromisoformat(created_at) if created_at else None,
        supervision=None if supervision is None else Supervision.model_validate(supervision),
    )
