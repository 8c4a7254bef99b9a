"""A RunStore under test, and short ways to do to it what a worker does.

A `Bed` is one host: a store, an owner and the leases it claimed. `Turns` drives one run of it and
keeps the position of its log.
"""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import pytest

from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.agent.models import Usage
from actors._kernel.runtime.commit import (
    CONTINUE,
    Commit,
    Committed,
    Finish,
    Outgoing,
    Spawned,
    Suspend,
)
from actors._kernel.runtime.ids import (
    AgentId,
    HostIncarnation,
    RunId,
    ShardId,
    run_id_of_child,
    run_id_of_mail,
    run_id_of_submit,
)
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import Lease, RetryPolicy, RunStatus, ShardLease
from actors._kernel.runtime.waits import WakeSet
from actors._kernel.stores.shards import Serves

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.agent.agent import NewSession, Supervision
    from actors._kernel.basics import Clock
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.commit import CommitOutcome, Deleted, SignalKey, Then
    from actors._kernel.stores.run_store import RunStore
    from actors._kernel.stores.runs import OnConflict, Submitted

Capability: TypeAlias = Literal["expiry", "hosts", "merging", "nudges"]
"""expiry: a silent host loses its shards. hosts: several processes share the rows. merging: an
append and a turn of one run may be sent at once. nudges: others' changes call the hook."""

LACKS: Final[Mapping[str, Mapping[Capability, str]]] = {
    "memory": {"merging": "each call is done before the next one begins"},
    "composed": {
        "expiry": "its rows belong to one process",
        "hosts": "its rows belong to one process",
        "merging": "each call is done before the next one begins",
        "nudges": "its rows belong to one process",
    },
    "postgres": {},
    "brokered": {},
}
"""What a backend cannot do, and why. A test of it is skipped by name, never silently."""

DESK: Final = AgentId("desk", "1")
SERVES: Final = Serves(types=("desk", "clerk"))
SENDER: Final = "client:tests"
EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)


class OpenHost(Protocol):
    """Opens one more store on the same rows, as another process would."""

    def __call__(self, owner: HostIncarnation) -> AbstractAsyncContextManager[RunStore]:
        """A store of this owner, closed at the end of the block."""
        ...


def started(agent: AgentId = DESK) -> NewEntry:
    """The first entry of a run."""
    return NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(agent)})


def result(position: str, value: JsonValue = None) -> NewEntry:
    """The recorded result of a step."""
    return NewEntry(
        EntryKind.EFFECT_RESULT,
        position,
        {
            "effect": "step",
            "name": "s",
            "hash": "0" * 16,
            "id": "0" * 64,
            "status": "ok",
            "value": value,
        },
    )


def answer(position: str, model: str = "m", *, status: str = "ok", **usage: object) -> NewEntry:
    """The entry of a model's answer."""
    payload: dict[str, JsonValue] = {
        "effect": "llm",
        "name": "m",
        "hash": "0",
        "id": position,
        "status": status,
        "model": model,
        "usage": Usage.model_validate(usage).model_dump(mode="json"),
    }
    return NewEntry(EntryKind.LLM_CALL, position, payload)


def child_spawned(child: Spawned) -> NewEntry:
    """The parent's entry of a child."""
    return NewEntry(
        EntryKind.CHILD_SPAWNED,
        child.position,
        {"child": child.run.run_id, "agent": str(child.run.agent_id)},
    )


def suspended(wake: WakeSet) -> NewEntry:
    """The entry of a `Suspend`."""
    return NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": wake.to_json()})


def completed(output: JsonValue = None) -> NewEntry:
    """The entry of a `Finish(COMPLETED)`."""
    return NewEntry(EntryKind.RUN_COMPLETED, "", {"output": output})


def message(
    text: JsonValue = "hi",
    *,
    to: AgentId = DESK,
    id: str,  # noqa: A002
    sender: str = SENDER,
) -> Message:
    """A message that somebody has sent."""
    return Message(id, to, text, sender, created_at=EPOCH)


def outgoing(
    text: JsonValue = "hi",
    *,
    to: AgentId,
    id: str,  # noqa: A002
    sender: str = f"agent:{DESK}",
) -> Outgoing:
    """A message that leaves with a turn."""
    return Outgoing(Message(id, to, text, sender, created_at=EPOCH), sender, to)


@dataclass
class Turns:
    """One run, as the worker that executes it holds it."""

    bed: Bed
    run_id: RunId
    agent: AgentId = DESK
    attempt: int = 1
    seq: int = -1
    root: RunId | None = None
    n: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def lease(self) -> Lease:
        """The right to write for this run, as claimed by its bed."""
        shard = self.bed.leases[self.bed.store.shards.shard_of(self.agent)]
        return Lease(
            shard.shard,
            shard.owner,
            shard.epoch,
            shard.expires_at,
            self.run_id,
            self.agent,
            self.attempt,
        )

    def turn(
        self,
        *entries: NewEntry,
        then: Then = CONTINUE,
        create: NewRun | None = None,
        bind: tuple[MessageKey, ...] = (),
        outgoing: tuple[Outgoing, ...] = (),
        take_signals: tuple[SignalKey, ...] = (),
        state: Mapping[str, JsonValue | Deleted] | None = None,
        **parts: object,
    ) -> Commit:
        """The commit of these parts behind the last one."""
        return Commit(
            self.lease,
            self.seq,
            entries,
            then,
            create=create,
            bind=bind,
            outgoing=outgoing,
            take_signals=take_signals,
            state=state or {},
            attempt=self.attempt,
            **parts,  # type: ignore[arg-type]
        )

    def child(
        self,
        position: str,
        agent: AgentId,
        *,
        boot: JsonValue | None = None,
        supervision: Supervision | None = None,
        depth: int = 1,
    ) -> Spawned:
        """A run to be spawned at this position, with a first message if there is one."""
        run_id = run_id_of_child(self.run_id, position)
        run = NewRun(
            run_id,
            agent,
            parent=self.run_id,
            root=self.root or self.run_id,
            depth=depth,
            supervision=supervision,
        )
        first = None
        if boot is not None:
            sender = f"spawn:{self.agent}"
            first = message(boot, to=agent, id=f"boot-{run_id}", sender=sender)
        return Spawned(run, position, first)

    async def spawn(self, position: str, agent: AgentId, *, boot: JsonValue | None = None) -> Turns:
        """A child of this run, created and not started, as its own worker holds it."""
        child = self.child(position, agent, boot=boot)
        await self.commit(self.turn(child_spawned(child), spawned=(child,)))
        return self.of_child(child)

    def of_child(self, child: Spawned) -> Turns:
        """A spawned run, as its worker holds it."""
        return Turns(self.bed, child.run.run_id, child.run.agent_id, root=child.run.root)

    async def send(self, commit: Commit) -> CommitOutcome:
        """What the store makes of it; the position follows a success."""
        outcome = await self.bed.store.commits.commit(commit)
        if isinstance(outcome, Committed):
            self.seq = outcome.last_seq
        return outcome

    async def commit(self, commit: Commit) -> Committed:
        """Write a turn that must succeed."""
        outcome = await self.send(commit)
        assert isinstance(outcome, Committed), outcome
        return outcome

    async def append(self, *entries: NewEntry) -> int:
        """Append entries behind the last one."""
        self.seq = await self.bed.store.commits.append(self.lease, entries, expected_seq=self.seq)
        return self.seq

    async def start(self) -> Turns:
        """Write the first entry."""
        await self.commit(self.turn(started(self.agent)))
        return self

    async def suspend(self, wake: WakeSet, **parts: object) -> Committed:
        """Let the run wait."""
        return await self.commit(self.turn(suspended(wake), then=Suspend(wake), **parts))  # type: ignore[arg-type]

    async def complete(self, output: JsonValue = None, **parts: object) -> Committed:
        """End the run well."""
        finish = Finish(RunStatus.COMPLETED, output)
        return await self.commit(self.turn(completed(output), then=finish, **parts))  # type: ignore[arg-type]

    async def fail(self, problem: str, **parts: object) -> Committed:
        """End the run for good."""
        error: dict[str, JsonValue] = {"type": "builtins:ValueError", "message": problem}
        entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": error})
        finish = Finish(RunStatus.FAILED, error=error)
        return await self.commit(self.turn(entry, then=finish, **parts))  # type: ignore[arg-type]

    async def cancel(self, reason: str, **parts: object) -> Committed:
        """End the run as cancelled, as an owner does without the run's code."""
        entry = NewEntry(EntryKind.RUN_CANCELLED, "", {"reason": reason})
        finish = Finish(RunStatus.CANCELLED)
        return await self.commit(self.turn(entry, then=finish, **parts))  # type: ignore[arg-type]


@dataclass
class Bed:
    """One host on the rows under test."""

    backend: str
    store: RunStore
    owner: HostIncarnation
    open_host: OpenHost
    clock: Clock
    """The store's present, as near as the test can know it."""
    lapse: Callable[[], Awaitable[None]]
    """Let this host look dead: its lease time passes without a heartbeat."""
    leases: dict[ShardId, ShardLease] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=itertools.count)

    def lease_of(self, agent_id: AgentId) -> ShardLease | None:
        """The lease this host holds for an agent."""
        return self.leases.get(self.store.shards.shard_of(agent_id))

    def needs(self, capability: Capability) -> None:
        """Skip the test on a backend that declares to lack this."""
        reason = LACKS[self.backend].get(capability)
        if reason is not None:
            pytest.skip(f"{self.backend} lacks {capability}: {reason}")

    async def claim(self, serves: Serves = SERVES) -> list[ShardLease]:
        """Declare and take every free shard."""
        await self.store.shards.declare(serves, partitions=4)
        claimed = await self.store.shards.claim(owner=self.owner, serves=serves, limit=1000)
        self.leases.update({lease.shard: lease for lease in claimed})
        return claimed

    @property
    def shards(self) -> list[ShardId]:
        """The shards this host holds."""
        return list(self.leases)

    @asynccontextmanager
    async def rival(self, name: str = "rival") -> AsyncIterator[Bed]:
        """Another host on the same rows, without shards."""
        self.needs("hosts")
        owner = HostIncarnation(name)
        async with self.open_host(owner) as store:
            await store.shards.declare(SERVES, partitions=4)
            yield Bed(self.backend, store, owner, self.open_host, self.clock, self.lapse)

    async def lose_to(self, rival: Bed) -> None:
        """Let `rival` take all shards over while this host goes on believing in its leases."""
        await rival.store.shards.release(list(self.leases.values()))
        new_leases = await rival.claim()
        assert {lease.shard for lease in new_leases} == set(self.leases)

    async def submit(  # noqa: PLR0913 - what a test may vary
        self,
        text: JsonValue = "hi",
        *,
        agent: AgentId = DESK,
        id: str | None = None,  # noqa: A002
        on_conflict: OnConflict = "queue",
        policy: RetryPolicy | None = None,
        priority: int = 5,
        supervision: Supervision | None = None,
        sender: str = "submit:tests",
        is_apart: bool = False,
        session: NewSession | None = None,
    ) -> Submitted:
        """Submit one message as a client does."""
        msg = message(text, to=agent, id=id or f"m{next(self.ids)}", sender=sender)
        new = NewRun(
            run_id_of_submit(agent, sender, msg.id),
            agent,
            priority=priority,
            retry_policy=policy or RetryPolicy(),
            supervision=supervision,
            session=session,
        )
        return await self.store.arrivals.submit(
            new, msg, on_conflict=on_conflict, is_apart=is_apart
        )

    async def begin(self, *, agent: AgentId = DESK, **parts: object) -> Turns:
        """A submitted run that has started."""
        submitted = await self.submit(agent=agent, **parts)  # type: ignore[arg-type]
        return await Turns(self, submitted.run_id, agent).start()

    def turns_of_mail(self, first: MessageKey) -> tuple[Turns, NewRun]:
        """A run to be created from waiting mail."""
        run_id = run_id_of_mail(first.agent, first.sender, first.message_id)
        return Turns(self, run_id, first.agent), NewRun(run_id, first.agent)

    def in_s(self, seconds: float) -> datetime:
        """An instant so far from the present, in whole milliseconds as every store keeps it."""
        at = self.clock.now() + timedelta(seconds=seconds)
        return at.replace(microsecond=at.microsecond // 1000 * 1000)
