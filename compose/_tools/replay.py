"""Replay of exported runs in memory: the log gives the results of effects, and no effect is executed.

The runtime's own `Execution` executes each run on a store that does not keep what the run writes. If the code
asks for an effect that the log does not have, the execution ends. The code between the effects runs, and so
does middleware.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import override

from actors._kernel.agent.agent import Agent
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Commit, CommitOutcome, Committed, Park, Suspend, Then
from actors._kernel.runtime.ids import AgentId, HostIncarnation, ShardId
from actors._kernel.runtime.log_entry import TERMINAL_KINDS, EntryKind, NewEntry, RunLogEntry
from actors._kernel.runtime.rows import Arrived, LoadedRun, RunRow
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.stores.runs import CommitStore
from actors._runtime import Runtime
from actors._runtime.execution.execution import Execution
from actors._runtime.loop.clock import SystemEntropy
from actors._runtime.parts import MemoryStore
from actors._runtime.registry import Registry, version_of
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.verbs.messaging import ForeignTopics
from actors.errors import ContractError
from compose._tools.export import ExportedRun

LIMIT_S: Final = 30.0
"""Time limit in seconds of the replay of one part of a run."""

Outcome: TypeAlias = Literal["reproduced", "diverged", "past_end", "stuck", "unserved", "not_begun"]
BAD: Final[frozenset[Outcome]] = frozenset({"diverged", "past_end", "stuck", "unserved"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of replaying one run.

    Attributes:
        run_id: Id of the run.
        agent: Id of the run's agent.
        outcome: ``reproduced``: the code did the same as the log, up to its end; ``diverged``: the code asked
            for something else, or ended otherwise; ``past_end``: the code continued, but the run has ended by
            the log; ``stuck``: the code awaits something outside of ctx; ``unserved``: the application does
            not have the agent; ``not_begun``: there is no log yet.
        entries: Number of entries of the log.
        position: Position of the divergence, or of the code's next call after the log's end.
        expected: Text of the log's entry.
        found: Text of the code's action.
        note: A remark, such as another version of the agent.
    """

    run_id: str
    agent: str
    outcome: Outcome
    entries: int = 0
    position: str = ""
    expected: str = ""
    found: str = ""
    note: str = ""


class Catalogue(Runtime):
    """A runtime that is never started, and only collects the agents of an application."""

    def __init__(self) -> None:
        super().__init__(serve=False)
        self.agents = Registry()

    @override
    async def register(self, agent: Agent) -> None:
        await super().register(agent)
        self.agents.add(agent)

    @override
    async def register_type(self, type_: str, factory: Callable[[AgentId], Agent]) -> None:
        await super().register_type(type_, factory)
        self.agents.add_type(type_, factory)


async def replay_run(run: ExportedRun, agents: Registry, *, until: int | None = None) -> Replayed:
    """Execute a run on its log, up to the entry `until`, and report whether the code does the same again.

    A log with ``run.continued`` is replayed in parts. The first part that differs is reported.
    """
    entries = tuple(e for e in run.entries if until is None or e.seq <= until)
    report = Replayed(
        run_id=run.row.run_id,
        agent=str(run.row.agent_id),
        outcome="not_begun",
        entries=len(entries),
    )
    if not entries:
        return report
    if not agents.is_served(run.row.agent_id):
        return replace(report, outcome="unserved", note="the application has no such agent")
    cuts = [index for index, e in enumerate(entries) if e.kind == EntryKind.RUN_CONTINUED]
    result = report
    for cut in [*cuts, len(entries)]:
        end = entries[cut] if cut < len(entries) else None
        part = entries[:cut]
        if end is None and part[-1].kind in TERMINAL_KINDS:
            part, end = part[:-1], part[-1]
        result = await _Segment(run.row, part, end, agents).replay(report)
        if result.outcome != "reproduced":
            return result
    return result


class _Segment:
    """A part of a run's log, and the entry that ended the part, or None if the log has no such entry."""

    def __init__(
        self, row: RunRow, entries: Sequence[RunLogEntry], end: RunLogEntry | None, agents: Registry
    ) -> None:
        # Deadlines and cancels come from outside of the code. The log has their effect.
        self._row = replace(
            row,
            status=RunStatus.RUNNING,
            parked=None,
            wake=None,
            wake_at=None,
            deadline_at=None,
            last_seq=entries[-1].seq,
            cancel_requested=None,
        )
        self._recorded_version = entries[0].payload.get("version")
        self._entries = tuple(map(_of_any_version, entries))
        self._end, self._agents = end, agents
        self._clock, self._sink = _StoppedClock(entries[-1].ts), _Sink()
        self._store = MemoryStore(clock=self._clock)
        self._store.commits = self._sink
        self._execution: Execution | None = None

    async def replay(self, report: Replayed) -> Replayed:
        registered = self._agents.find(self._row.agent_id)
        if registered is None:
            raise ContractError("the application has no such agent")
        agent: Any = _Quiet(registered)
        version = version_of(agent)
        note = (
            ""
            if version == self._recorded_version
            else f"recorded with version {self._recorded_version}, replayed with {version}"
        )
        self._execution = Execution(
            self._environment(), agent, self._lease(), LoadedRun(self._row, self._entries)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._execution.run()
        except TimeoutError:
            text = f"did not return within {LIMIT_S:g} s"
            return replace(report, outcome="stuck", found=text, note=note)
        return replace(self._judge(report), note=note)

    def _judge(self, report: Replayed) -> Replayed:
        assert self._execution is not None
        unwritten_entries, unmet_position = self._execution.leftovers
        new_entries = [*self._sink.written, *unwritten_entries]
        next_entry = next((entry for entry in new_entries if entry.position), None)
        last_entry = new_entries[-1] if new_entries else None
        then = self._sink.then
        if isinstance(then, Park) and then.reason == "non_determinism" and last_entry is not None:
            return self._diverged(report, then.position, _requested_call(last_entry))
        if unmet_position is not None and not (last_entry and last_entry.kind in TERMINAL_KINDS):
            where = f" at {next_entry.position}" if next_entry is not None else ""
            return self._diverged(report, unmet_position, f"{_what_next(then, next_entry)}{where}")
        report = replace(
            report,
            position=next_entry.position if next_entry else "",
            found=_what_next(then, next_entry),
        )
        if self._end is None:
            return replace(report, outcome="reproduced")
        has_ended = (
            next_entry is None and last_entry is not None and not isinstance(then, Suspend | Park)
        )
        return self._compare(report, self._end, last_entry if has_ended else None)

    def _compare(
        self, report: Replayed, log_end: RunLogEntry, code_end: NewEntry | None
    ) -> Replayed:
        """Compare the log's end with the end of the code, which is None if the code did not end."""
        is_same = (
            _came_from_outside(log_end) if code_end is None else _is_same_end(code_end, log_end)
        )
        if is_same:
            return replace(report, outcome="reproduced", position="", found="")
        report = replace(report, expected=_describe_end(log_end.kind, log_end.payload))
        if code_end is None:
            return replace(report, outcome="past_end")
        text = _describe_end(code_end.kind, code_end.payload)
        return replace(report, outcome="diverged", position="the end", found=text)

    def _diverged(self, report: Replayed, position: str, action: str) -> Replayed:
        entries = [entry for entry in self._entries if entry.position == position]
        expected = "nothing"
        if entries:
            # Not every entry of a call names it.
            naming_entry = next((e for e in reversed(entries) if "hash" in e.payload), entries[-1])
            expected = _describe(naming_entry.kind, naming_entry.payload)
        return replace(
            report, outcome="diverged", position=position, expected=expected, found=action
        )

    def _lease(self) -> Lease:
        return Lease(
            ShardId("replay"),
            HostIncarnation("replay"),
            0,
            datetime.max.replace(tzinfo=UTC),
            self._row.run_id,
            self._row.agent_id,
            1,
        )

    def _environment(self) -> HostServices:
        return HostServices(
            store=self._store,
            agents=self._agents,
            clock=self._clock,
            entropy=SystemEntropy(),
            suspend_after=0.0,
            mail_of=lambda _: _NoMail(),
            may_act=self._may_not_act,
            foreign_topics=ForeignTopics(),
            results=_NoResults(self._may_not_act),
        )

    def _may_not_act(self) -> bool:
        """End the replay, because the code has reached an effect that the log does not have."""
        assert self._execution is not None
        asyncio.get_running_loop().call_soon(self._execution.drop, "the log ends here")
        return False


@dataclass(frozen=True, slots=True)
class _StoppedClock:
    """A clock that stands at the end of the log, so that later timers are not due."""

    at: datetime

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return 0.0


class _Sink(CommitStore):
    """A store that keeps the written entries and the last outcome for the verdict."""

    def __init__(self) -> None:
        self.written: list[NewEntry] = []
        self.then: Then | None = None

    @override
    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        self.written += entries
        return expected_seq + len(entries)

    @override
    async def commit(self, commit: Commit) -> CommitOutcome:
        self.written += commit.entries
        self.then = commit.then
        return Committed(commit.expected_seq + len(commit.entries))


class _NoResults:
    """A cache without results, because a replay must not see results after the log's end."""

    def __init__(self, reached: Callable[[], bool]) -> None:
        self._reached = reached

    def keep(self, key: str, payload: dict[str, JsonValue]) -> None:
        """Keep nothing."""

    async def find(self, key: str) -> dict[str, JsonValue] | None:
        """End the replay and never return, because the caller's next step would reconcile the effect."""
        self._reached()
        await asyncio.Event().wait()
        return None


class _NoMail:
    def first(self) -> Arrived | None:
        return None

    def take(self) -> Arrived | None:
        return None

    def put_back(self, arrived: Arrived) -> None:
        pass


class _Quiet:
    """An agent without its hooks, and without its context, whose history it would clear."""

    hooks = ()
    context = None

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)


def _of_any_version(entry: RunLogEntry) -> RunLogEntry:
    """Return the entry without the version that may continue it, because a replay tries any version."""
    if entry.kind not in (EntryKind.RUN_STARTED, EntryKind.RUN_CONTINUED):
        return entry
    payload = {key: value for key, value in entry.payload.items() if key != "version"}
    return replace(entry, payload=payload)


def _came_from_outside(end: RunLogEntry) -> bool:
    """Return True if a cancel or a deadline ended the run, and not its code."""
    status = end.payload.get("status")
    return end.kind == EntryKind.RUN_CANCELLED or status in ("deadline_exceeded", "cancelled")


def _is_same_end(code_end: NewEntry, log_end: RunLogEntry) -> bool:
    """Return True if both ends are the same. A failed attempt and a failed run are the same end."""
    is_retried = (
        code_end.kind == EntryKind.RUN_ATTEMPT_FAILED and log_end.kind == EntryKind.RUN_FAILED
    )
    if code_end.kind != log_end.kind and not is_retried:
        return False
    return _ending(code_end.kind, code_end.payload) == _ending(log_end.kind, log_end.payload)


def _ending(kind: str, payload: dict[str, JsonValue]) -> JsonValue:
    """Return the value by which two ends are compared: output, input, or the type of the error."""
    match kind:
        case EntryKind.RUN_COMPLETED:
            return payload.get("output")
        case EntryKind.RUN_CONTINUED:
            return payload.get("input")
        case EntryKind.RUN_FAILED | EntryKind.RUN_ATTEMPT_FAILED:
            error = payload.get("error")
            return error.get("type") if isinstance(error, dict) else None
        case _:
            return None


def _describe_end(kind: str, payload: dict[str, JsonValue]) -> str:
    text = str(_ending(kind, payload))
    return f"{kind} {text if len(text) <= 200 else text[:199] + '…'}".strip()  # noqa: PLR2004


def _requested_call(park_entry: NewEntry) -> str:
    """Return the text of the code's call at the position of a divergence."""
    detail = str(park_entry.payload.get("detail", ""))
    call_text = detail.partition("the code now asks for ")[2]
    return call_text.partition(". Nothing was executed")[0] or detail


def _describe(kind: str, payload: dict[str, JsonValue]) -> str:
    name = payload.get("name") or payload.get("verb") or payload.get("key") or ""
    return f"{kind} {name} (hash {payload.get('hash', '-')})".replace("  ", " ")


def _what_next(then: Then | None, next_entry: NewEntry | None) -> str:
    """Return the text of the code's next action after the log's end."""
    if next_entry is not None:
        return _describe(next_entry.kind, next_entry.payload)
    if isinstance(then, Suspend):
        return "waits"
    if isinstance(then, Park):
        return f"parked: {then.reason}"
    return "an effect that was started and has no result" if then is None else "ends"
