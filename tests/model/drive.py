"""Plays a `Case` on the real runtime, in virtual time, with faults."""

from __future__ import annotations

import asyncio
import functools
import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from actors._kernel.agent.agent import SpawnBudget
from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_submit
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import Broker
from actors.errors import ActorsError, PersistenceError
from tests.harness.faulty_store import Door, Faults, FaultyStore
from tests.harness.simloop import SimEntropy, SteppedClock, simulate
from tests.model.agent import Execution, ProgramAgent, World
from tests.model.anchor import Anchor, agents_of, anchor
from tests.model.completions import policy_of
from tests.model.ground import MemoryGround, message_of, run_of
from tests.model.leftovers import leftovers
from tests.model.memories import Shelf, shelf_of
from tests.model.operators import Act, Operator
from tests.model.reading import essential, seconds
from tests.model.seeding import seed_store
from tests.model.sessions import sessions_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.runtime.rows import Arrived, RunRow
    from actors._kernel.stores.run_store import RunStore
    from persistence.postgres import PostgresStore
    from tests.harness.heldloop import HeldLoop
    from tests.harness.simloop import SimLoop
    from tests.model.ground import Ground
    from tests.model.history import Line
    from tests.model.program import Case
    from tests.model.sessions import Session

BOOT: Final = "boot"
CLIENT: Final = "local"
SETTLE_S: Final = 11.0
"""Seconds without events after the last one; a run that waits is suspended by then."""


STUCK_S: Final = 30.0
"""A message that still waits for a free agent after this time is stuck."""


@dataclass(frozen=True, slots=True)
class Other:
    """A run beside the submitted one, at the end."""

    row: RunRow
    entries: list[RunLogEntry]
    refolded: RunRow | None

    @property
    def status(self) -> str:
        """Its status in the model's form."""
        return status_of(self.row)


def status_of(row: RunRow | None) -> str:
    """Return a run's status in the model's form."""
    if row is None:
        return "MISSING"
    if row.parked is not None:
        return "PARKED"
    return row.status.value if row.status.is_terminal else "WAITING"


@dataclass(slots=True)
class Observed:
    """The results of a played case.

    Attributes: anchor: The state from which the model has to continue, if there was a fault.
    unread: Messages of later runs of the first agent, in order, and waiting ones. senders: Of
    `unread`. stuck: Number of messages that wait though the agent is free. replies: By run and
    question, the code's replies. acts: Accepted acts of an operator. logs: Of all runs, if there
    was one. over_at: The end of everything, in virtual seconds. sent: Messages in the sink's inbox.
    calls: Names of the store calls made. sessions: Conversations with turns, by ``AGENT SESSION``.
    keeps: Whether their turns stay when runs end. shelf: The memories of the case's tenant.
    leftovers: See `leftovers`.
    """

    row: RunRow | None = None
    entries: list[RunLogEntry] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    unread: list[Any] = field(default_factory=list)
    senders: list[str] = field(default_factory=list)
    stuck: int = 0
    replies: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    logs: list[list[RunLogEntry]] = field(default_factory=list)
    over_at: float = 0.0
    sent: list[Arrived] = field(default_factory=list)
    begun: list[Execution] = field(default_factory=list)
    ended: list[Execution] = field(default_factory=list)
    ghosts: list[Execution] = field(default_factory=list)
    anchor: Anchor | None = None
    calls: list[str] = field(default_factory=list)
    refolded: RunRow | None = None
    others: dict[str, Other] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    waiting: dict[str, list[Arrived]] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    keeps: bool = False
    shelf: Shelf = field(default_factory=Shelf)
    leftovers: list[str] = field(default_factory=list)

    @property
    def log(self) -> list[Line]:
        """The log in the model's form."""
        return essential(self.entries)

    @property
    def status(self) -> str:
        """The run's status in the model's form."""
        return status_of(self.row)


@dataclass
class Stage:
    """One play of one case."""

    case: Case
    loop: SimLoop | HeldLoop
    ground: Ground
    suspend_after: float
    faults: Faults
    until: float
    prefix: tuple[RunLogEntry, ...] = ()
    before: tuple[Execution, ...] = ()
    seen: Observed = field(default_factory=Observed)

    def __post_init__(self) -> None:
        self.agent = AgentId.parse(self.case.root)
        self.parts: dict[str, Any] = {
            "clock": SteppedClock(self.loop, self.faults.steps),
            "entropy": _Even(self.loop.seed),
            "suspend_after": self.suspend_after,
        }
        self.store = self.ground.store
        self._world = World(self.case, self._names)
        self.run_id = run_id_of_submit(self.agent, f"submit:{CLIENT}", BOOT)
        self._died = asyncio.Event()
        self._events = self.case.arrivals
        asked_runs = (
            run_of(self.agent, event[3], event[1])[0]
            for event in self._events
            if "asked" in event[3]
        )
        self.faults.sure = {run.run_id for run in asked_runs}
        self._doors = itertools.cycle(self.faults.doors or (Door.OTHER,))
        self._runtime: Runtime | None = None
        self.faults.on_load = self._loaded
        self.list_runs: Callable[[], Awaitable[list[RunRow]]] = lambda: self.store.lists.runs(
            limit=10_000
        )

    async def play(self) -> Observed:
        """Play the case to its end and return the results."""
        if self.prefix:
            await self._begin_in_the_middle()
        arrivals = asyncio.ensure_future(self.arrive())
        orders = asyncio.ensure_future(self._operate())
        back = asyncio.ensure_future(self._go_back())
        while not await self._host():
            pass
        arrivals.cancel()
        orders.cancel()
        back.cancel()
        return self.seen

    async def _go_back(self) -> None:
        """Roll the rows back; messages of external clients are in their stream, and are read again."""
        if self.faults.back is None:
            return
        assert isinstance(self.ground, MemoryGround)
        first, last = self.faults.back
        await asyncio.sleep(first)
        rows = self.ground.copied()
        await asyncio.sleep(last - first)
        self.ground.go_back(rows)
        for event in [event for event in self._events if event[0] <= self.loop.time()]:
            await self._deliver(*event)

    async def _operate(self) -> None:
        if self.faults.orders:
            client = Runtime(store=self.ground.elsewhere, serve=False, **self.parts)
            operator = Operator(client, self.seen.acts)
            await operator.work(self.faults.orders)

    async def _begin_in_the_middle(self) -> None:
        self.loop._virtual = seconds(self.prefix[-1].ts)
        self._world.begun = [
            execution for execution in self.before if execution.at < self.loop.time()
        ]
        await seed_store(self.store, self.case, self.prefix, BOOT)
        payloads = [
            line.data["payload"] for line in essential(self.prefix) if "payload" in line.data
        ]
        self._events = [event for event in self._events if event[3] not in payloads]
        while self._events and self._events[0][0] <= self.loop.time():
            await self._deliver(*self._events.pop(0))
        await self._anchor()

    async def _host(self) -> bool:
        """Run one host; return False if it crashed."""
        self._died.clear()
        runtime: Runtime | None = None

        def die() -> None:
            self._died.set()
            self._world.host += 1
            if runtime is not None:
                runtime._host.crash()

        async def before_call() -> None:
            if self.faults.kills_code():
                die()
                await asyncio.get_running_loop().create_future()

        self._world.before_call = before_call if self.faults.between else None
        async with self.ground.host() as stead:
            store = FaultyStore(stead.store, self.faults, die)
            broker = None
            if stead.transport is not None:
                rows = cast("PostgresStore", store)
                broker = Broker(stead.transport, rows.mail, rows.outbox)
            runtime = Runtime(
                store=cast("RunStore", store),
                owner=stead.owner,
                heartbeat_s=stead.heartbeat_s,
                broker=broker,
                **self.parts,
            )
            self._runtime = runtime
            if await self._or_died(self._live(runtime)):
                await self._or_died(_stopped(runtime))
                return True
            store.silence()
            await runtime._host._tasks.close()
        await self._anchor()
        await self.store.shards.release(self.faults.leases)
        return False

    async def _anchor(self) -> None:
        if self.faults.orders:
            return  # the model has no operators
        self.seen.anchor = await anchor(
            self.store, self.case, self.run_id, at=self.loop.time(), counts=self._world.counts()
        )

    async def _loaded(self, run_ids: Sequence[RunId]) -> None:
        if self.seen.anchor is None and self.run_id in run_ids:
            await self._anchor()

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
        await _retried(runtime.start)
        await _retried(lambda: runtime.register(ProgramAgent(self.case, self._world)))
        for type_ in self.case.cast:
            await _retried(functools.partial(runtime.register_type, type_, self.make))
        await self.submit(runtime)
        if self.faults.struck and self.seen.anchor is None:
            await self._anchor()
        if (early_s := self._soonest() - self.loop.time()) > 0:
            await asyncio.sleep(early_s)
        while not await self.is_over():  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.5)
        limit = self.loop.time() + STUCK_S
        while not await self.ground.is_settled() and self.loop.time() < limit:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await self.look()
        self.seen.leftovers = await leftovers(runtime, self.store, await self.list_runs())

    async def submit(self, runtime: Runtime) -> None:
        """Start the case."""
        message = Message.of(self.agent, {"boot": True}, id=BOOT)
        policy = policy_of(self.case.retry)
        more: dict[str, Any] = {}
        if self.case.budget:
            more["spawn_budget"] = SpawnBudget(**self.case.budget)
        await _retried(lambda: runtime.submit(self.agent, message, retry_policy=policy, **more))

    def make(self, agent_id: AgentId) -> ProgramAgent:
        """Return an agent of the case."""
        return ProgramAgent(self.case, self._world, id=agent_id)

    def _soonest(self) -> float:
        """Return a time before which `is_over` is False and need not be called: it reads rows."""
        times = [0.0]
        if self.case.cast:
            times.append(self.until + 0.5)
        if self.faults.back is not None:
            times.append(self.faults.back[1] + 1.0)
        if self.faults.orders:
            times.append(max(self.until, *[at for at, _ in self.faults.orders]) + SETTLE_S)
        return max(times)

    async def is_over(self) -> bool:
        """Return whether all work is complete."""
        row = await self.store.reads.run(self.run_id)
        if self.case.cast and not await self._are_others_over():
            return False
        if self.faults.back is not None and self.loop.time() < self.faults.back[1] + 1.0:
            return False
        if self.faults.orders:
            return await self._are_orders_over()
        if row is not None and row.status.is_terminal:
            now = self.loop.time()
            last = max([*self.case.mail, *self.case.asked, 0.0]) + 0.5
            waiting = await self.store.lists.pending_count(self.agent)
            return now > last and (not waiting or now > max(self.until, last) + STUCK_S)
        arrived = max([arrival[0] for arrival in self.case.arrivals], default=0.0)
        if self.loop.time() < max(self.until, arrived) + SETTLE_S:
            return False
        waits = row is not None and row.status is RunStatus.SUSPENDED and row.wake_at is None
        return waits or self.loop.time() > self.until + STUCK_S * 10

    async def _are_orders_over(self) -> bool:
        """Return whether an operator's work is complete, with its consequences."""
        last = max(at for at, _ in self.faults.orders)
        if self.loop.time() < max(last, self.until) + SETTLE_S:
            return False
        rows = [row for row in await self.list_runs() if not row.status.is_terminal]
        is_at_rest = all(row.status is RunStatus.SUSPENDED and row.wake_at is None for row in rows)
        return is_at_rest or self.loop.time() > self.until + STUCK_S * 10

    async def _are_others_over(self) -> bool:
        """Return whether all other runs have completed their work."""
        if self.loop.time() < self.until + 0.5:
            return False
        rows = await self.list_runs()
        waits = [row for row in rows if not row.status.is_terminal and self._is_other(row)]
        is_at_rest = all(row.status is RunStatus.SUSPENDED and row.wake_at is None for row in waits)
        return is_at_rest or self.loop.time() > self.until + STUCK_S * 10

    def _is_other(self, row: RunRow) -> bool:
        """Return whether a run is of this case, and not of its first agent."""
        return row.agent_id.tenant == self.agent.tenant and row.agent_id != self.agent

    async def look(self) -> None:
        """Read the results of the case."""
        seen, store = self.seen, self.store
        seen.unread, seen.senders = [], []
        seen.row = await store.reads.run(self.run_id)
        seen.entries = [entry async for entry in store.reads.entries(self.run_id)]
        seen.refolded = await store.operators.refold(self.run_id)
        seen.state = await store.reads.state(self.agent)
        seen.sent = await store.backlog.pending_mail(agent=AgentId.parse(self.case.sink))
        waiting = await store.backlog.pending_mail(agent=self.agent)
        for run in sorted(await store.lists.runs(agent=self.agent), key=lambda run: run.arrival):
            result: Any = run.result
            if run.run_id != self.run_id and result is not None:
                seen.unread += result.get("unread", [])
                seen.senders += result.get("senders", [])
            elif run.run_id != self.run_id and run.last_seq < 0:
                waiting += (await store.reads.load([run.run_id]))[0].messages
        waiting.sort(key=lambda mail_row: mail_row.arrival)
        seen.unread += [mail_row.message.payload for mail_row in waiting]
        seen.senders += [mail_row.message.sender or "" for mail_row in waiting]
        await self._look_at_others()
        seen.keeps = self.case.retention == "permanent"
        if self.case.retention:
            rows = [other.row for other in seen.others.values()]
            agents = [self.agent, *agents_of(self.case, rows)]
            seen.sessions = await sessions_of(store, agents)
        if self.case.remembers:
            seen.shelf = await shelf_of(store, self.agent.tenant)
        if self.faults.orders:
            runs = [row.run_id for row in await self.list_runs()]
            seen.logs = [[entry async for entry in store.reads.entries(run_id)] for run_id in runs]
        if seen.row is not None and seen.row.status.is_terminal:
            seen.stuck = await self.store.lists.pending_count(self.agent)
        seen.begun, seen.ended = self._world.begun, self._world.ended
        seen.ghosts, seen.calls = self._world.ghosts, self.faults.calls
        seen.replies, seen.over_at = self._world.replies, self.loop.time()

    async def _look_at_others(self) -> None:
        seen, store = self.seen, self.store
        if not self.case.cast:
            return
        for run in await self.list_runs():
            if self._is_other(run):
                entries = [entry async for entry in store.reads.entries(run.run_id)]
                refolded = await store.operators.refold(run.run_id)
                seen.others[run.run_id] = Other(run, entries, refolded)
        for agent in agents_of(self.case, [other.row for other in seen.others.values()]):
            seen.states[str(agent)] = await store.reads.state(agent)
            seen.waiting[str(agent)] = await store.backlog.pending_mail(agent=agent)

    async def arrive(self) -> None:
        """Deliver signals and mail at their times, as another process would."""
        for event in self._events:
            await asyncio.sleep(event[0] - self.loop.time())
            await self._deliver(*event)

    async def _deliver(self, _: float, id: str, name: str, payload: dict[str, Any]) -> None:  # noqa: A002
        if "asked" in payload:
            await self.ground.submit(self.agent, payload, id=id)
            return
        if not name:
            await self._send(payload, id)
            return
        while await self.store.reads.run(self.run_id) is None:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.01)
        await self.ground.signal(self.agent, self.run_id, name, payload, id=id)

    async def _send(self, payload: dict[str, Any], id: str) -> None:  # noqa: A002
        door, runtime = next(self._doors), self._runtime
        if door is Door.OTHER or runtime is None:
            await self.ground.send(self.agent, payload, id=id)
            return
        message = message_of(self.agent, payload, id)
        if door is Door.HOST:
            await runtime.send(self.agent, message, sender=message.sender)
        else:
            await runtime.inbox.deliver(self.agent, message, notify=False)

    async def _names(self, run_id: RunId) -> tuple[tuple[str, str], ...]:
        return tuple(
            [
                (entry.kind, str(entry.payload.get("name", "")))
                async for entry in self.store.reads.entries(run_id)
            ]
        )


class _Even(SimEntropy):
    """Returns constant pauses, so that those of runs with the default policy are known."""

    @override
    def random(self) -> float:
        return 0.5


async def _stopped(runtime: Runtime) -> None:
    with suppress(PersistenceError):
        await runtime.stop()


async def _retried(call: Any) -> Any:
    """Return the call's result; a refused call is repeated, as by a caller."""
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
    prefix: tuple[RunLogEntry, ...] = (),
    before: tuple[Execution, ...] = (),
    grain_s: float = 0.0,
) -> Observed:
    """Return the runtime's results for a case.

    Args: case: The case. seed: Of the simulation. suspend_after: The runtime's. until: The virtual
    time of the predicted end. faults: The injected faults. prefix: A log that the run has already,
    for a start in the middle. before: The executions when it was written. grain_s: The loop's.
    """

    async def main(loop: SimLoop) -> Observed:
        loop.grain_s = grain_s
        ground = MemoryGround(SteppedClock(loop, faults.steps if faults else ()))
        stage = Stage(case, loop, ground, suspend_after, faults or Faults(), until, prefix, before)
        return await stage.play()

    return simulate(main, seed=seed)[0]
