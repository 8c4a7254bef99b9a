"""Removal of sessions and of what they leave: artifacts, and logs of tasks.

A session is deleted by name, or after it was idle for a given time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import TERMINAL, RunStatus
from actors._kernel.stores.errors import OpenRunsError, SessionActiveError
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import TaskRun
from actors._runtime.runtime import Runtime
from actors._sessions.artifacts import ArtifactKind, NamedPin, artifacts_of
from actors.errors import ContractError, PersistenceError

SESSIONS_PAGE: Final = 100
SWEEP_ENTRIES: Final = 20_000
"""Maximum number of log entries that one statement removes.

A log with more entries is removed by its own statement.
"""
EXPENDABLE: Final[frozenset[ArtifactKind]] = frozenset(("debug", "raw"))


@dataclass(frozen=True, slots=True)
class ArtifactCandidate:
    """An artifact that a clean-up removes: current bytes of a name, or older bytes that a run still pins.

    Attributes:
        session_id: The session.
        name: The artifact's name.
        kind: See `ArtifactKind`.
        run_id: The run that put it, or None if a program put it.
        artifact_id: The SHA-256 of the bytes.
        size_bytes: The number of bytes.
        at: The instant at which it was put last, aware UTC.
        reason: The reason why it is removed.
    """

    session_id: str
    name: str
    kind: ArtifactKind
    run_id: RunId | None
    artifact_id: str
    size_bytes: int
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class TaskCandidate:
    """An ended run that was spawned for a card of a task board and whose log exists.

    Attributes:
        session_id: The session of the run above it.
        run_id: The run.
        agent_id: The run's agent.
        task: The id of the card.
        status: The run's terminal status.
        ended_at: The instant of its end, aware UTC.
        entries: The number of entries of its log.
        size_bytes: The size of the entries' payloads as JSON.
        reason: The reason why its log is removed.
    """

    session_id: str
    run_id: RunId
    agent_id: AgentId
    task: str
    status: RunStatus
    ended_at: datetime
    entries: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ArtifactCleanup:
    """The result of a clean-up of artifacts.

    Attributes:
        is_dry_run: True if nothing was removed.
        candidates: The artifacts that were removed or would be removed, the oldest first.
    """

    is_dry_run: bool
    candidates: tuple[ArtifactCandidate, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all candidates. Bytes that two candidates share count twice."""
        return sum(candidate.size_bytes for candidate in self.candidates)


@dataclass(frozen=True, slots=True)
class TaskCleanup:
    """The result of a clean-up of tasks.

    Attributes:
        is_dry_run: True if nothing was removed.
        candidates: The runs whose logs were removed or would be removed, the oldest first.
    """

    is_dry_run: bool
    candidates: tuple[TaskCandidate, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all candidates."""
        return sum(candidate.size_bytes for candidate in self.candidates)


@dataclass(frozen=True, slots=True)
class _Version:
    """The bytes of a name in a session, and the pins of these bytes under this name."""

    session: AgentId
    newest: NamedPin
    pins: tuple[NamedPin, ...]

    @property
    def age_key(self) -> tuple[datetime, str, str, str]:
        """The sort key by age."""
        artifact = self.newest.artifact
        return artifact.at, str(self.session), artifact.name, artifact.ref.id

    def candidate(self, reason: str) -> ArtifactCandidate:
        """Return the candidate for this version."""
        artifact = self.newest.artifact
        size, id_ = artifact.ref.size_bytes, artifact.ref.id
        return ArtifactCandidate(
            self.session.key,
            artifact.name,
            artifact.kind,
            artifact.run_id,
            id_,
            size,
            artifact.at,
            reason,
        )


@dataclass(frozen=True, slots=True)
class ArtifactChoice:
    """The conditions by which artifacts are chosen, see `AgentRuntime.cleanup_artifacts`."""

    include_all: bool = False
    older_than: timedelta | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_age(self.older_than)
        if self.max_bytes is not None and self.max_bytes < 0:
            raise ContractError(f"max_bytes is {self.max_bytes}: give 0 or more")

    def reason(self, kind: ArtifactKind) -> str:
        """Return the reason why an artifact of this kind is removed."""
        reasons = [
            f"kind {kind}" if kind in EXPENDABLE else f"kind {kind}, which include_all takes"
        ]
        if self.older_than is not None:
            reasons.append(f"older than {self.older_than}")
        if self.max_bytes is not None:
            reasons.append(f"the others would have more than {self.max_bytes:,} bytes")
        return "; ".join(reasons)


def choose_artifacts(
    versions: Sequence[_Version], choice: ArtifactChoice, *, now: datetime
) -> list[_Version]:
    """Return the versions to remove, the oldest first."""
    candidates = [
        version
        for version in versions
        if choice.include_all or version.newest.artifact.kind in EXPENDABLE
    ]
    remaining_bytes = sum(version.newest.artifact.ref.size_bytes for version in candidates)
    removals = []
    for version in sorted(candidates, key=lambda version: version.age_key):
        artifact = version.newest.artifact
        if choice.max_bytes is not None and remaining_bytes <= choice.max_bytes:
            break
        if choice.older_than is None or artifact.at <= now - choice.older_than:
            removals.append(version)
            remaining_bytes -= artifact.ref.size_bytes
    return removals


async def clean_artifacts(
    runtime: Runtime, sessions: AsyncIterator[AgentId], choice: ArtifactChoice, *, dry_run: bool
) -> ArtifactCleanup:
    """Remove the names of the chosen artifacts of these sessions, or only list them (`dry_run`)."""
    store, versions = runtime.store, list[_Version]()
    async for session in sessions:
        versions += _versions(session, await artifacts_of(store, session).pins())
    removals = choose_artifacts(versions, choice, now=runtime.clock.now())
    if not dry_run:
        for version in removals:
            await artifacts_of(store, version.session).unpin(version.pins)
    candidates = (
        version.candidate(choice.reason(version.newest.artifact.kind)) for version in removals
    )
    return ArtifactCleanup(dry_run, tuple(candidates))


def _versions(session: AgentId, pins: Sequence[NamedPin]) -> list[_Version]:
    pins_by_bytes: dict[tuple[str, str], list[NamedPin]] = {}
    for named_pin in pins:
        pins_by_bytes.setdefault((named_pin.artifact.name, named_pin.pin.ref.id), []).append(
            named_pin
        )
    return [
        _Version(session, max(group, key=lambda pin: pin.pin.at), tuple(group))
        for group in pins_by_bytes.values()
    ]


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The conditions by which tasks are chosen, see `AgentRuntime.cleanup_project_tasks`."""

    include_failed: bool = False
    include_cancelled: bool = False
    older_than: timedelta | None = None

    def __post_init__(self) -> None:
        _check_age(self.older_than)

    @property
    def statuses(self) -> list[RunStatus]:
        """The terminal statuses of the runs whose logs are removed."""
        return [
            RunStatus.COMPLETED,
            *([RunStatus.FAILED] if self.include_failed else []),
            *([RunStatus.CANCELLED] if self.include_cancelled else []),
        ]

    def candidate(self, session: AgentId, run: TaskRun) -> TaskCandidate:
        """Return the candidate for a run."""
        age = "" if self.older_than is None else f"; older than {self.older_than}"
        return TaskCandidate(
            session.key,
            run.run_id,
            run.agent_id,
            run.task,
            run.status,
            run.ended_at,
            run.entries,
            run.size_bytes,
            f"task {run.status.lower()}{age}",
        )


async def clean_tasks(
    runtime: Runtime, sessions: AsyncIterator[AgentId], choice: TaskChoice, *, dry_run: bool
) -> TaskCleanup:
    """Remove the logs of the chosen tasks of these sessions, or only list them (`dry_run`)."""
    store, now = runtime.store, runtime.clock.now()
    candidates = [
        choice.candidate(session, run)
        async for session in sessions
        for run in await store.lists.tasks(session, status=choice.statuses)
        if choice.older_than is None or run.ended_at <= now - choice.older_than
    ]
    candidates.sort(key=lambda candidate: (candidate.ended_at, candidate.run_id))
    if not dry_run:
        await _sweep(store, candidates)
    return TaskCleanup(dry_run, tuple(candidates))


async def sweep_below(store: RunStore, session: AgentId) -> int:
    """Remove logs and turns of the ended runs below a session; return the number of logs.

    The runs' rows stay.
    """
    runs = await store.lists.tasks(session, status=[*TERMINAL], every=True)
    for run in runs:
        await store.data.transcripts.clear_run(run.agent_id, None, run.run_id)
    return await _sweep(store, runs)


async def _sweep(store: RunStore, runs: Sequence[TaskCandidate | TaskRun]) -> int:
    log_count = 0
    for batch in _batches(runs):
        log_count += await store.retention.sweep_these([run.run_id for run in batch])
    return log_count


def _batches(runs: Sequence[TaskCandidate | TaskRun]) -> list[list[TaskCandidate | TaskRun]]:
    """Return runs in batches of at most `SWEEP_ENTRIES` entries. A longer log is a batch of its own."""
    batches: list[list[TaskCandidate | TaskRun]] = []
    remaining_entries = 0
    for run in runs:
        if not batches or run.entries > remaining_entries:
            batches.append([])
            remaining_entries = SWEEP_ENTRIES
        batches[-1].append(run)
        remaining_entries -= max(run.entries, 1)
    return batches


async def sessions_of(
    store: RunStore,
    tenant: str,
    app: str,
    *,
    project: str | None = None,
    owner: str | None = None,
    only: AgentId | None = None,
) -> AsyncIterator[AgentId]:
    """Yield the sessions of an app, optionally of one project or owner.

    With `only` that session is yielded, even if it does not exist.
    """
    after: AgentId | None = None
    if only is not None:
        yield only
        return
    while True:
        page = await store.data.sessions.page(
            tenant, app, project=project, owner=owner, after=after, limit=SESSIONS_PAGE
        )
        for agent in page:
            yield agent
        if len(page) < SESSIONS_PAGE:
            return
        after = page[-1]


def _check_age(older_than: timedelta | None) -> None:
    if older_than is not None and older_than < timedelta(0):
        raise ContractError(f"older_than is {older_than}: give a span of 0 or more")


_log = logging.getLogger("callboard.sessions")

IDLE_BATCH: Final = 20
"""Number of idle sessions that are read at once."""
PAUSE_S: Final = 0.2
"""Pause between two batches in seconds, in which the store serves other callers."""
EVERY_S: Final = 60.0
"""Seconds between two polls for idle sessions."""


async def delete_session(
    runtime: Runtime, agent: AgentId, *, unless_since: datetime | None = None
) -> dict[str, dict[str, int]] | None:
    """Delete a session in batches; return the numbers of deleted rows by kind.

    None if the session does not exist, or it is used again.

    Args:
        runtime: The runtime of the session.
        agent: The session.
        unless_since: An instant. If the session's last fact is of this instant or later, the session is not
            deleted.

    Raises:
        SessionActiveError: A run of the session is open.
    """
    sessions = runtime.store.data.sessions
    if not await sessions.begin_delete(agent, unless_since=unless_since):
        return None
    # Before the erase: runs below the session are found from the session's own runs, which it removes.
    log_count = await sweep_below(runtime.store, agent)
    report = await runtime.erase(tenant=agent.tenant, agent=agent)
    rows = await sessions.finish_delete(agent)
    return {name: dict(kinds) for name, kinds in report.counts.items()} | {
        "sessions": {"rows": rows},
        "children": {"logs": log_count},
    }


def ttl_of(days: float | None) -> timedelta | None:
    """Return the time after which idle sessions are deleted, or None if they are kept.

    Raises:
        ContractError: `days` is not a number above 0.
    """
    if days is None:
        return None
    try:
        if days > 0:
            return timedelta(days=days)
    except (OverflowError, ValueError):
        pass
    raise ContractError(
        f"ttl_days is {days!r}: give a number of days above 0, or None to keep sessions"
    )


async def delete_idle(runtime: Runtime, tenant: str, app: str, *, ttl: timedelta) -> int:
    """Delete the sessions of an app that were idle for `ttl`; return their number.

    A session that is used during the call stays. Several processes may call this at once.
    """
    deleted_count = 0
    while True:
        before = runtime.clock.now() - ttl
        agents = await runtime.store.data.sessions.idle(
            tenant, app, before=before, limit=IDLE_BATCH
        )
        batch_count = 0
        for agent in agents:
            try:
                batch_count += await delete_session(runtime, agent, unless_since=before) is not None
            # A user continued the session since it was read as idle: it stays.
            except (SessionActiveError, OpenRunsError):
                continue
        deleted_count += batch_count
        # If nothing of a batch was deleted, the next query returns the same batch: the loop would never end.
        if not batch_count or len(agents) < IDLE_BATCH:
            return deleted_count
        await asyncio.sleep(PAUSE_S)


async def keep_deleting_idle(runtime: Runtime, tenant: str, app: str, *, ttl: timedelta) -> None:
    """Delete idle sessions once a minute until cancelled."""
    while True:
        try:
            deleted_count = await delete_idle(runtime, tenant, app, ttl=ttl)
            if deleted_count:
                _log.info("idle sessions were deleted", extra={"sessions": deleted_count})
        # The database may be away for a while: an exception would end the deletion for as long as the process.
        except PersistenceError as exc:
            _log.warning("deletion of idle sessions failed and is tried again", exc_info=exc)
        await asyncio.sleep(EVERY_S)
