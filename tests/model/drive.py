"""Plays a `Case` on the real runtime over a `MemoryStore`, in a simulation, with faults."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ActorsError
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import RunId, run_id_of_submit
from actors.runtime import Runtime
from actors.runtime.backends.memory import MemoryStore
from tests.harness.faulty_store import Faults, FaultyStore
from tests.harness.simloop import EPOCH, SimClock, SimEntropy, simulate
from tests.model.agent import AGENT, SINK, Execution, ProgramAgent, World
from tests.model.endings import policy_of
from tests.model.reading import essential, seconds

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from actors.kernel.runtime.commit import Arrived, RunRow
    from actors.kernel.runtime.log_entry import RunLogEntry
    from tests.harness.simloop import SimLoop
    from tests.model.history import Line
    from tests.model.program import Case

BOOT: Final = "boot"
SETTLE_S: Final = 11.0
"""After the last event nothing happens for so long; a run that waits is suspended by then."""


@dataclass(frozen=True, slots=True)
class Death:
    """A host died: when, and what the log and the world were then."""

    at: float
    log: list[RunLogEntry]
    counts: dict[str, int]


@dataclass(slots=True)
class Observed:
    """What was found when a case had been played.

    Attributes:
        unread: Numbers of messages that went to later runs, in order.
        sent: Messages that lie in the sink's inbox.
        calls: Names of the store calls made.
    """

    row: RunRow | None = None
    entries: list[RunLogEntry] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    sent: list[Arrived] = field(default_factory=list)
    begun: list[Execution] = field(default_factory=list)
    ended: list[Execution] = field(default_factory=list)
    ghosts: list[Execution] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refolded: RunRow | None = None

    @property
    def log(self) -> list[Line]:
        """The log in the model's form."""
        return essential(self.entries)

    @property
    def status(self) -> str:
        """The run's status in the model's words."""
        if self.row is None:
            return "MISSING"
        if self.row.parked is not None:
            return "PARKED"
        return self.row.status.value if self.row.status.is_terminal else "WAITING"


@dataclass
class Stage:
    """One play of one case."""

    case: Case
    loop: SimLoop
    suspend_after: float
    faults: Faults
    until: float
    seen: Observed = field(default_factory=Observed)

    def __post_init__(self) -> None:
        self._clock = SimClock(self.loop)
        self._entropy = SimEntropy(self.loop.seed)
        self.store = MemoryStore(clock=self._clock)
        self._outside = self.store.sibling()
        self._world = World(self.case, self._names)
        self.run_id = RunId("")
        self._died = asyncio.Event()

    async def play(self) -> Observed:
        """Play the case to its end and look at what is left."""
        arrivals = asyncio.ensure_future(self._arrive())
        while not await self._host():
            pass
        arrivals.cancel()
        return self.seen

    async def _host(self) -> bool:
        """One host's life; False if it died."""
        self._died.clear()
        runtime: Runtime | None = None

        def die() -> None:
            self._died.set()
            self._world.host += 1
            if runtime is not None:
                runtime.crash()

        store = FaultyStore(self.store.sibling(), self.faults, die)
        runtime = Runtime(
            store=store,  # type: ignore[arg-type]
            clock=self._clock,
            entropy=self._entropy,
            suspend_after=self.suspend_after,
        )
        if await self._or_died(self._live(runtime)):
            await runtime.__aexit__(None, None, None)
            return True
        store.bury()
        entries = [entry async for entry in self.store.entries(self.run_id)]
        self.seen.deaths.append(Death(self.loop.time(), entries, self._world.counts()))
        await self.store.release_shards(self.faults.leases)
        return False

    async def _or_died(self, work: Coroutine[Any, Any, None]) -> bool:
        task = asyncio.ensure_future(work)
        died = asyncio.ensure_future(self._died.wait())
        await asyncio.wait({task, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if self._died.is_set():
            task.cancel()
            await asyncio.wait({task})
            return False
        task.result()
        return True

    async def _live(self, runtime: Runtime) -> None:
        await _retried(runtime.__aenter__)
        await _retried(lambda: runtime.register(ProgramAgent(self.case, self._world)))
        message = Message.of(AGENT, {"boot": True}, id=BOOT)
        policy = policy_of(self.case.retry)
        self.run_id = await _retried(lambda: runtime.submit(AGENT, message, retry_policy=policy))
        while not await self._is_over():
            await asyncio.sleep(0.5)
        await self._look()

    async def _is_over(self) -> bool:
        row = await self.store.run(self.run_id)
        if row is not None and row.status.is_terminal:
            last = max([*self.case.mail, 0.0]) + 0.5
            return self.loop.time() > last and not await self.store.pending_mail(agent=AGENT)
        arrived = max([at for at, _ in self.case.signals] + self.case.mail, default=0.0)
        return self.loop.time() > max(self.until, arrived) + SETTLE_S

    async def _look(self) -> None:
        seen, store = self.seen, self.store
        seen.row = await store.run(self.run_id)
        seen.entries = [entry async for entry in store.entries(self.run_id)]
        seen.refolded = await store.refold(self.run_id)
        seen.state = await store.state(AGENT)
        seen.sent = await store.pending_mail(agent=SINK)
        for run in sorted(await store.list_runs(agent=AGENT), key=lambda run: run.arrival):
            if run.run_id != self.run_id and isinstance(run.result, dict):
                seen.unread += [one["mail"] for one in run.result["unread"]]
        waiting = await store.pending_mail(agent=AGENT)
        seen.unread += [one.message.payload["mail"] for one in waiting]
        seen.begun, seen.ended = self._world.begun, self._world.ended
        seen.ghosts, seen.calls = self._world.ghosts, self.faults.calls

    async def _arrive(self) -> None:
        """Deliver signals and mail at their times, as another process would."""
        events = [(at, name, {"n": n}) for n, (at, name) in enumerate(self.case.signals)]
        events += [(at, "", {"mail": n}) for n, at in enumerate(self.case.mail)]
        for at, name, payload in sorted(events, key=lambda event: event[0]):
            await asyncio.sleep(at - self.loop.time())
            if name:
                while not self.run_id:
                    await asyncio.sleep(0.01)
                await self._outside.signal(
                    self.run_id, name, payload, message_id=f"{name}{at}", sender="ext:test"
                )
            else:
                message = Message.of(AGENT, payload, id=f"mail{at}").sent_by("ext:test")
                await self._outside.deliver([message])

    async def _names(self) -> tuple[tuple[str, str], ...]:
        if not self.run_id:
            return ()
        return tuple(
            [
                (entry.kind, str(entry.payload.get("name", "")))
                async for entry in self.store.entries(self.run_id)
            ]
        )


async def _retried(call: Any) -> Any:
    """Return what the call gives; a refused one is made again, as a caller would."""
    while True:
        try:
            return await call()
        except ActorsError as exc:
            if not exc.retryable:
                raise
            await asyncio.sleep(0.01)


def play(
    case: Case,
    *,
    seed: int = 0,
    suspend_after: float = 5.0,
    until: float,
    faults: Faults | None = None,
) -> Observed:
    """Return what the runtime did with a case. `until` is the virtual time of the predicted end."""

    async def main(loop: SimLoop) -> Observed:
        stage = Stage(case, loop, suspend_after, faults or Faults(), until)
        return await stage.play()

    return simulate(main, seed=seed)[0]
