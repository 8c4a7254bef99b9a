"""A `RunStore` with injected faults: a call fails or kills its host, before or after its work is done.

Hints that pass through it may be late, lost or doubled.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

from actors._kernel.stores.run_store import DataStores, RunStore
from actors.errors import PersistenceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from actors._kernel.runtime.hints import Nudge
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.rows import LoadedRun
    from actors._kernel.runtime.scheduler import ShardLease


MOST_LATE_S: Final = 4.0
"""Before the next scan of the rows."""

_LEFT_ALONE: Final = frozenset(("artifacts", "insight", "limits"))
_ROLES: Final = (
    (RunStore.__annotations__.keys() | DataStores.__annotations__.keys()) - _LEFT_ALONE
) | {"mail", "outbox"}
"""Methods of the store whose calls can fail."""


class Manner(StrEnum):
    """The fault of a call."""

    ERROR_BEFORE = "error before"
    """Nothing is written and the caller gets an error."""
    ERROR_AFTER = "error after"
    """It is written and the caller gets an error: the outcome is unknown to it."""
    DIE_BEFORE = "die before"
    DIE_AFTER = "die after"
    """The host crashes in the middle of the call, which never returns."""
    DELAY = "delay"
    """The call takes `delay_s` seconds and works."""
    HOLD = "hold"
    """The call waits until the test sets `release`, and works then."""
    SENT = "sent"
    """As `HOLD`, but it also works if its caller was cancelled meanwhile: the request is at the server."""
    LATE_ANSWER = "late answer"
    """The call works at once, and its answer waits until the test sets `release`."""


class Door(StrEnum):
    """The way of an external client's message into the rows, always under the same name."""

    OTHER = "another process"
    """The client writes the row; this host gets a hint."""
    HOST = "the host"
    """The host writes the row itself."""
    UNTOLD = "without a hint"
    """The host writes the row without a hint, as `Inbox.deliver(notify=False)` does."""


@dataclass(slots=True)
class Faults:
    """Which call of all hosts of a test goes wrong, and the list of calls so far.

    Attributes:
        nth: Number of the call, 0 is the first; None: every call works.
        also: Further calls that go wrong in the same manner.
        method: Only calls of this method are counted; None counts all.
        always: Every counted call is the one.
        wanted: Only calls with such arguments are counted.
        held: Set while a call, or its answer, is held.
        release: Lets it go on.
        sent: The calls of the manner `Manner.SENT`, with their outcomes.
        calls: Names of all calls counted so far.
        struck: Whether it has happened.
        on_load: Told of every load that worked after it.
        leases: Shard leases handed out, so that a test can end a dead host's.
        hints: A seed: each hint from another process is kept, late, lost or doubled; None: all are kept.
        sure: Runs of which no hint is lost: the statement that submits them tells of them, and who does not
            hear it reads all open runs when it hears again.
        doors: By which way each message of outsiders comes, in turns; see `Door`.
        steps: How the clock is wrong, of hosts and of rows in memory; see `SteppedClock`.
        orders: What an operator does, and when.
        back: When the rows, in memory, go back, and to what they were at which time before.
        full: From when to when the disk of the database is full.
        unreadable: Numbers of the runs whose rows cannot be read when they are loaded; 0 is the first run that
            is loaded.
        loaded: Number of runs that were loaded so far.
        between: Numbers of calls of agents' code, over all runs: the host dies in code, just before the call.
        called: Number of calls of code so far.
    """

    nth: int | None = None
    manner: Manner = Manner.ERROR_BEFORE
    method: str | None = None
    always: bool = False
    wanted: Callable[..., bool] = lambda *_: True
    held: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[asyncio.Task[Any]] = field(default_factory=list)
    delay_s: float = 0.05
    calls: list[str] = field(default_factory=list)
    struck: bool = False
    on_load: Callable[[Sequence[RunId]], Awaitable[None]] | None = None
    leases: list[ShardLease] = field(default_factory=list)
    also: tuple[int, ...] = ()
    hints: int | None = None
    sure: Collection[RunId] = ()
    doors: tuple[Door, ...] = ()
    steps: tuple[tuple[float, float], ...] = ()
    orders: tuple[tuple[float, str], ...] = ()
    back: tuple[float, float] | None = None
    full: tuple[float, float] | None = None
    unreadable: tuple[int, ...] = ()
    loaded: int = 0
    between: tuple[int, ...] = ()
    called: int = 0

    def kills_code(self) -> bool:
        """Count a call of an agent's code; return True if the host dies before it."""
        self.called += 1
        is_deadly = self.called - 1 in self.between
        self.struck |= is_deadly
        return is_deadly

    async def after_load(
        self, run_ids: Sequence[RunId], runs: Sequence[LoadedRun]
    ) -> list[LoadedRun]:
        """Return the loaded runs as the host reads them; `on_load` is told of them."""
        if self.struck and self.on_load is not None:
            await self.on_load(run_ids)
        return [self._as_read(run) for run in runs]

    def _as_read(self, run: LoadedRun) -> LoadedRun:
        """Count a run that is loaded; return it, or its row alone if its other rows cannot be read now."""
        self.loaded += 1
        if self.loaded - 1 not in self.unreadable:
            return run
        problem = f"entry {run.row.last_seq} of run {run.row.run_id} cannot be decoded"
        return replace(run, entries=(), messages=(), unreadable=problem)

    def strikes(self, method: str, *args: Any) -> bool:
        """Count a call; return True if it is the faulty one."""
        if self.method not in (None, method) or not self.wanted(*args):
            return False
        self.calls.append(method)
        if len(self.calls) - 1 not in (self.nth, *self.also) and not self.always:
            return False
        self.struck = True
        return True


class FaultyStore:
    """Wraps the store of one host.

    Args: store: Does the work. faults: Shared by all hosts of a test. die: Crashes the host at
    once.
    """

    def __init__(self, store: RunStore, faults: Faults, die: Callable[[], None]) -> None:
        self._store = store
        self._faults = faults
        self._die = die
        self._dead = False
        self._roles: list[FaultyStore] = []

    @classmethod
    def wrap(cls, store: RunStore, faults: Faults, die: Callable[[], None]) -> RunStore:
        """Return the wrapped store, typed as the store."""
        return cast("RunStore", cls(store, faults, die))

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """See `RunStore.set_nudge_hook`."""
        if hook is None or self._faults.hints is None:
            self._store.set_nudge_hook(hook)
            return
        chance = random.Random(f"hints {self._faults.hints}")

        def unreliably(nudge: Nudge) -> None:
            ways = [[0.0], [MOST_LATE_S * chance.random()], [], [0.0, 0.8]]
            if nudge.kind == "run" and nudge.run_id in self._faults.sure:
                ways.remove([])
            for late_s in chance.choice(ways):
                if late_s:
                    asyncio.get_running_loop().call_later(late_s, self._tell, hook, nudge)
                else:
                    hook(nudge)

        self._store.set_nudge_hook(unreliably)

    def _tell(self, hook: Callable[[Nudge], None], nudge: Nudge) -> None:
        if not self._dead:
            hook(nudge)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if name in _ROLES and member is not None:
            role = self._role(member)
            setattr(self, name, role)
            return role
        if name == "of":  # runs of one tenant
            return lambda *args: self._role(member(*args))
        if not inspect.iscoroutinefunction(member):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(name, member, args, kwargs)

        return call

    def _role(self, member: Any) -> FaultyStore:
        role = FaultyStore(member, self._faults, self._die)
        role._dead = self._dead
        self._roles.append(role)
        return role

    async def _call(self, name: str, member: Any, args: Any, kwargs: Any) -> Any:
        if self._dead:
            await _never()
        manner = self._faults.manner if self._faults.strikes(name, *args) else None
        await asyncio.sleep(0)
        if manner is Manner.DELAY:
            await asyncio.sleep(self._faults.delay_s)
        elif manner is Manner.HOLD:
            self._faults.held.set()
            await self._faults.release.wait()
        elif manner is Manner.ERROR_BEFORE:
            raise PersistenceError(f"{name}: refused, nothing was written")
        elif manner is Manner.DIE_BEFORE:
            await self._end()
        if self._dead:
            await _never()
        work = member(*args, **kwargs)
        result = await (self._send(work) if manner is Manner.SENT else work)
        if name == "claim":
            self._faults.leases += result
        if name == "load":
            result = await self._faults.after_load(args[0], result)
        if manner is Manner.DIE_AFTER:
            await self._end()
        if manner is Manner.LATE_ANSWER:
            self._faults.held.set()
            await self._faults.release.wait()
        if manner is Manner.ERROR_AFTER:
            raise PersistenceError(f"{name}: no answer, the outcome is unknown")
        await asyncio.sleep(0)
        return result

    async def _send(self, work: Awaitable[Any]) -> Any:
        async def later() -> Any:
            await self._faults.release.wait()
            return await work

        task = asyncio.create_task(later())
        task.add_done_callback(lambda done: done.exception())
        self._faults.sent.append(task)
        self._faults.held.set()
        await asyncio.wait({task})
        return task.result()

    async def _end(self) -> None:
        self.silence()
        self._die()
        await _never()

    def silence(self) -> None:
        """The host is dead: its calls do nothing and never return."""
        self._dead = True
        for role in self._roles:
            role.silence()


async def _never() -> None:
    await asyncio.get_running_loop().create_future()
