"""The course of the demo: start servers and a host, publish a job, kill the host, start another, prove.

The proof compares the run's log with the ledger outside the runtime, step by step. A step is *recorded* when
its result is in the run's log. The log is read twice: just after the first host was killed, and at the end. The
steps' functions write the ledger, without the runtime.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Protocol

import nats
from nats.aio.client import Client
from nats.errors import NoRespondersError

from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_mail
from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors._runtime import Runtime
from actors._runtime.loop.tasks import TaskScope
from actors.errors import ActorsError
from broker import Subjects
from compose._assembly.local import LocalServers, local_servers
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from compose._embedded.server import ProcessSpec
from compose.demo.desk import Job, LedgerEntry, executions
from compose.embedded import Server, ServerFailedError

__all__ = ["DemoError", "Director", "Outcome", "Proof", "prove"]

LEASE_S: Final = 2.0
HEARTBEAT_S: Final = 0.5
PACE_S: Final = 0.25
SENTENCES: Final = 3
STEPS_PER_DOCUMENT: Final = 3
POLL_S: Final = 0.02
PATIENCE_S: Final = 60.0
DESK: Final = AgentId("desk", "main")
PUBLISHER: Final = "demo"


class DemoError(ActorsError):
    """The demo could not be completed. The message names the part that failed."""


class Audience(Protocol):
    """The receiver of the demo's progress."""

    def tell(self, text: str) -> None:
        """Show a line of text about an event."""

    def progress(self, done: int, total: int, what: str) -> None:
        """Show that `done` of `total` steps were executed so far. `what` is the name of the last step."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The folder of one demo, and the paths of its files.

    Attributes:
        folder: Absolute path of the folder.
        documents: The files to read.
    """

    folder: Path
    documents: Sequence[Path]

    @property
    def server_folder(self) -> Path:
        """The data folder of the embedded servers."""
        return self.folder / "servers"

    @property
    def ledger(self) -> Path:
        """The ledger, which has a line per execution of a step."""
        return self.folder / "ledger.jsonl"

    @property
    def published(self) -> Path:
        """The file of the published lines."""
        return self.folder / "published.txt"

    @property
    def report(self) -> Path:
        """The report of the job."""
        return self.folder / "report.md"

    @property
    def log(self) -> Path:
        """The log file of both hosts."""
        return self.folder / "hosts.log"

    @property
    def step_count(self) -> int:
        """The number of steps of the job."""
        return STEPS_PER_DOCUMENT * len(self.documents) + 1

    def job(self) -> Job:
        """Return the payload for the agent."""
        return Job(
            documents=[str(path) for path in self.documents],
            sentences=SENTENCES,
            pace_s=PACE_S,
            report=str(self.report),
            published=str(self.published),
            ledger=str(self.ledger),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of the demo.

    Attributes:
        stage: The folder of the demo.
        run_id: Id of the job's run.
        first_pid: Process id of the killed host.
        second_pid: Process id of the second host.
        took_over_after_s: Seconds from the kill to the first step that the second host executed.
        proof: The proof.
        seconds: Duration of the whole demo in seconds.
    """

    stage: Stage
    run_id: RunId
    first_pid: int
    second_pid: int
    took_over_after_s: float
    proof: Proof
    seconds: float = 0.0


@dataclass(slots=True)
class Director:
    """The director of one demo."""

    stage: Stage
    audience: Audience
    _hosts: list[Server] = field(default_factory=list)

    async def show(self) -> Outcome:
        """Execute the demo, and return its outcome with the proof.

        Raises:
            DemoError: A part took longer than 60 s, or NATS refused the job.
            ServerFailedError: A server or a host did not start.
        """
        started_at = time.monotonic()
        for old_file in (self.stage.ledger, self.stage.published, self.stage.report):
            old_file.unlink(missing_ok=True)
        self.audience.tell(
            "starting embedded NATS, PostgreSQL and Valkey (durable: fsync and synchronous commits)"
        )
        async with local_servers(self.stage.server_folder) as servers:
            settings = Settings(lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S)
            async with build_postgres_runtime(
                servers.postgres_url, settings=settings, client=PUBLISHER, serve=False
            ) as client:
                try:
                    outcome = await self._perform(client, servers)
                finally:
                    for host in self._hosts:
                        await asyncio.to_thread(host.stop, 5.0)
        return replace(outcome, seconds=round(time.monotonic() - started_at, 2))

    async def _perform(self, client: Runtime, servers: LocalServers) -> Outcome:
        first = await self._start_host(servers)
        subject = Subjects().external(DESK, PUBLISHER)
        self.audience.tell(
            f"host 1 is process {first.pid}; an external client publishes a job over "
            f"{len(self.stage.documents)} documents to {subject}"
        )
        run_id = await self._publish(servers.nats_url, subject, first)
        middle = len(self.stage.documents) // 2

        def extracts_the_middle() -> bool:
            names = [line.name for line in executions(self.stage.ledger)]
            return names.count("extract") > middle

        await self._watch(first, extracts_the_middle)
        await asyncio.to_thread(first.kill)
        killed_at = time.monotonic()
        at_kill = [entry async for entry in client.entries(run_id)]
        seen_count = len(executions(self.stage.ledger))
        self.audience.tell(
            f"SIGKILL: host 1 is dead in the middle of {self.stage.documents[middle].name} "
            f"({len(at_kill)} log entries are durable)"
        )
        second = await self._start_host(servers)
        self.audience.tell(
            f"host 2 is process {second.pid}; it has the agent when host 1's lease is over "
            f"(this demo uses a lease of {LEASE_S:g} s; the default is 10 s)"
        )
        await self._watch(second, lambda: len(executions(self.stage.ledger)) > seen_count)
        took_over_after_s = round(time.monotonic() - killed_at, 2)
        self.audience.tell(
            f"host 2 continues the run, {took_over_after_s:g} s after the kill: recorded steps are replayed, "
            "not executed"
        )
        await self._until_ended(client, run_id, second)
        at_end = [entry async for entry in client.entries(run_id)]
        return Outcome(
            stage=self.stage,
            run_id=run_id,
            first_pid=first.pid,
            second_pid=second.pid,
            took_over_after_s=took_over_after_s,
            proof=self._prove(at_kill, at_end, first),
        )

    def _prove(
        self, at_kill: Sequence[RunLogEntry], at_end: Sequence[RunLogEntry], first: Server
    ) -> Proof:
        code = first.returncode
        return prove(
            documents=[str(path) for path in self.stage.documents],
            at_kill=at_kill,
            at_end=at_end,
            ledger=executions(self.stage.ledger),
            published=self.stage.published.read_text(encoding="utf-8").splitlines(),
            first_pid=first.pid,
            killed_by=-code if code is not None and code < 0 else None,
        )

    async def _publish(self, nats_url: str, subject: str, host: Server) -> RunId:
        """Publish the job like an external client in any language, as JSON with a message id.

        Returns the id of the run that this message starts.
        """
        message_id, body = secrets.token_hex(8), json.dumps(self.stage.job()).encode()
        deadline = time.monotonic() + PATIENCE_S
        client = await nats.connect(nats_url, name=PUBLISHER)
        try:
            while (answer := await _answer(client, subject, body, message_id)) is None:
                if not host.is_running or time.monotonic() > deadline:
                    raise DemoError(f"no host accepts messages:\n{host.log_tail()}")
                await asyncio.sleep(POLL_S)
        finally:
            await client.close()
        if "error" in json.loads(answer):
            raise DemoError(f"NATS refused the job: {answer.decode()}")
        return run_id_of_mail(DESK, f"ext:{PUBLISHER}", message_id)

    async def _start_host(self, servers: LocalServers) -> Server:
        command = ProcessSpec(
            name="host",
            log=self.stage.log,
            stop_signal=signal.SIGTERM,
            argv=[sys.executable, "-m", "compose", "host", "compose.demo.desk:AGENTS"],
            env={
                "CALLBOARD_POSTGRES_URL": servers.postgres_url,
                "CALLBOARD_NATS_URL": servers.nats_url,
                "CALLBOARD_REDIS_URL": servers.redis_url,
                "CALLBOARD_LEASE_S": str(LEASE_S),
                "CALLBOARD_HEARTBEAT_S": str(HEARTBEAT_S),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        host = await asyncio.to_thread(Server, command)
        self._hosts.append(host)
        return host

    async def _until_ended(self, client: Runtime, run_id: RunId, host: Server) -> None:
        has_ended = asyncio.Event()

        async def wait() -> None:
            await client.wait(run_id)
            has_ended.set()

        async with TaskScope() as scope:
            scope.start(wait(), name="wait for the run")
            await self._watch(host, has_ended.is_set)
        self._show_progress()

    async def _watch(self, host: Server, is_reached: Callable[[], bool]) -> None:
        """Report progress until `is_reached` returns True.

        Raises:
            DemoError: It did not return True within 60 s.
            ServerFailedError: The host ended.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not is_reached():
            if not host.is_running:
                raise ServerFailedError("host", f"ended with {host.returncode}", host.log_tail())
            if time.monotonic() > deadline:
                raise DemoError(f"nothing happened for {PATIENCE_S:g} s:\n{host.log_tail()}")
            self._show_progress()
            await asyncio.sleep(POLL_S)

    def _show_progress(self) -> None:
        lines = executions(self.stage.ledger)
        done = len({line.effect for line in lines})
        self.audience.progress(done, self.stage.step_count, lines[-1].name if lines else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProof:
    """The proof of one step: its executions, and its results.

    Attributes:
        position: The step's position in the run's log.
        name: Name of the step.
        document: Name of the step's document; empty for the report.
        mode: ``idempotent`` or ``at_most_once``.
        executed: Number of calls of the step's function in the ledger.
        pids: Process ids of these calls, in order.
        second_host: The second host's action: ``replayed`` (it used the recorded result), ``executed`` (it
            executed the step for the first time) or ``repeated`` (the first host was killed during the step,
            and recorded no result).
        holds: True if every promise about the step holds.
    """

    position: str
    name: str
    document: str
    mode: str
    executed: int
    pids: tuple[int, ...]
    second_host: Literal["replayed", "executed", "repeated"]
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The proofs of all steps, and the promises about the whole run."""

    steps: tuple[StepProof, ...]
    was_killed: bool
    """SIGKILL ended the first host after some steps were recorded, and before all were."""
    was_recovered: bool
    """The log has a take-over of the run after a crash."""
    is_complete: bool
    """The run completed, and every step has exactly one result."""
    published_once: bool
    """The line of every document was published exactly once."""

    @property
    def holds(self) -> bool:
        """True if every promise holds."""
        whole = self.was_killed and self.was_recovered and self.is_complete and self.published_once
        return whole and all(step.holds for step in self.steps)

    def to_json(self) -> dict[str, object]:
        """Return the proof as JSON data."""
        return {"holds": self.holds, **asdict(self)}


def prove(
    *,
    documents: Sequence[str],
    at_kill: Sequence[RunLogEntry],
    at_end: Sequence[RunLogEntry],
    ledger: Sequence[LedgerEntry],
    published: Sequence[str],
    first_pid: int,
    killed_by: int | None,
) -> Proof:
    """Return the proof, from the log at both times, the ledger and the published lines.

    Args:
        documents: Paths of the documents, in the order of the job.
        at_kill: The log just after the first host had ended.
        at_end: The whole log.
        ledger: Every execution of a step.
        published: The published lines.
        first_pid: Process id of the killed host.
        killed_by: Number of the signal that ended the first host; None if no signal did.
    """
    results = [entry for entry in at_end if entry.kind == EntryKind.EFFECT_RESULT]
    results = [entry for entry in results if entry.payload["effect"] == "step"]
    recorded_positions = {
        entry.position for entry in at_kill if entry.kind == EntryKind.EFFECT_RESULT
    }
    modes = {
        entry.position: str(entry.payload["mode"])
        for entry in at_end
        if entry.kind == EntryKind.EFFECT_INTENT
    }
    names = [*(Path(path).name for path in documents for _ in range(3)), ""]
    steps = tuple(
        _step(
            entry,
            document,
            mode=modes[entry.position],
            was_recorded=entry.position in recorded_positions,
            ledger=ledger,
            first_pid=first_pid,
        )
        for entry, document in zip(results, names, strict=False)
    )
    keys = Counter(line.split(" ", 1)[0] for line in published)
    resumed_entries = [entry for entry in at_end if entry.kind == EntryKind.RUN_RESUMED]
    return Proof(
        steps=steps,
        was_killed=killed_by == 9 and 0 < len(recorded_positions) < len(results),  # noqa: PLR2004 - SIGKILL
        was_recovered=any(entry.payload["reason"] == "recovered" for entry in resumed_entries),
        is_complete=len(results) == len(names) == len({entry.position for entry in results})
        and at_end[-1].kind == EntryKind.RUN_COMPLETED,
        published_once=len(keys) == len(documents) and set(keys.values()) == {1},
    )


def _step(
    result: RunLogEntry,
    document: str,
    *,
    mode: str,
    was_recorded: bool,
    ledger: Sequence[LedgerEntry],
    first_pid: int,
) -> StepProof:
    pids = tuple(line.pid for line in ledger if line.effect == result.payload["id"])
    first_host_count = pids.count(first_pid)
    second_host_count = len(pids) - first_host_count
    if was_recorded:
        holds, second_host = first_host_count == 1 and second_host_count == 0, "replayed"
    elif first_host_count == 0:
        holds, second_host = second_host_count == 1, "executed"
    else:
        # The host was killed during this step. Only an idempotent step may have been executed again.
        at_most = 1 if mode == "at_most_once" else 2
        holds, second_host = len(pids) <= at_most, "repeated"
    return StepProof(
        position=result.position,
        name=str(result.payload["name"]),
        document=document,
        mode=mode,
        executed=len(pids),
        pids=pids,
        second_host=second_host,  # type: ignore[arg-type]
        holds=holds,
    )


async def _answer(client: Client, subject: str, body: bytes, message_id: str) -> bytes | None:
    """Publish a message and return the broker's answer, or None if the streams do not exist yet."""
    headers = {"Nats-Msg-Id": message_id}
    try:
        answer = await client.request(subject, body, timeout=PATIENCE_S, headers=headers)
    except NoRespondersError:
        return None
    return bytes(answer.data)
