"""Dispatch: whose turn it is on a host. Agents with something to do wait here until they may execute."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ActorsError
from actors.kernel.runtime.decisions import to_decide
from actors.runtime.admission import Admission, Entry
from actors.runtime.mailbox import Holding, Mailbox
from actors.runtime.ready_queue import ReadyQueue
from actors.runtime.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from actors.kernel.clock import Clock
    from actors.kernel.runtime.ids import AgentId, RunId
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.mailboxes import Mailboxes
    from actors.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

TRY_AGAIN_S: Final = 1.0
"""Seconds before a run is tried again when the store could not be read or written."""


class Dispatch:
    """Starts agents that have something to do, as far as the capacity goes and limits allow.

    Args:
        store: Holds the signals that may wake a parked run.
        mailboxes: Say who may start.
        clock: For timers.
        tasks: What is started runs here.
        capacity: How many agents execute at once; runs that wait in memory count.
        drive: Executes what is next for an agent, and calls `leave` behind it.

    Attributes:
        admission: Who of those that are ready may execute, by the limits of the deployment.
        timers: When waiting runs go on.
        load: How many agents execute.
        is_stopping: Nothing starts any more.
    """

    def __init__(
        self,
        store: RunStore,
        mailboxes: Mailboxes,
        clock: Clock,
        tasks: TaskScope,
        *,
        capacity: int,
        drive: Callable[[Entry[Mailbox]], Coroutine[Any, Any, None]],
    ) -> None:
        self._store, self._mailboxes, self._clock, self._tasks = store, mailboxes, clock, tasks
        self._capacity, self._drive = capacity, drive
        self._ready: ReadyQueue[Mailbox] = ReadyQueue()
        self.admission: Admission[Mailbox] = Admission(
            self._ready, clock=lambda: asyncio.get_running_loop().time()
        )
        self.timers = Timers(clock, self._on_timer)
        self.load = 0
        self.is_stopping = False

    @property
    def backlog(self) -> int:
        """How many agents are ready and do not execute yet."""
        return len(self._ready)

    def look_at(self, mailbox: Mailbox) -> None:
        """It may start now: see whether there is something to start."""
        self.consider(mailbox)
        if mailbox.nudged:
            self.wake(mailbox)
        self._mailboxes.forget_empty(mailbox)

    def consider(self, mailbox: Mailbox) -> None:
        """Let the agent have its next turn, if no run holds it."""
        if mailbox.holding is Holding.NOTHING and mailbox.has_work:
            self._make_ready(mailbox)

    def goes_on(self, mailbox: Mailbox) -> bool:
        """Whether an agent whose run is over has its next turn at once, before anybody else."""
        is_next = mailbox.holding is Holding.NOTHING and mailbox.has_work and not self._ready
        is_next = is_next and not self.admission.concerns(mailbox.agent_id)
        return is_next and self._mailboxes.may_start(mailbox)

    def wake(self, mailbox: Mailbox) -> None:
        """Let the run that holds the agent go on, if it waits."""
        if mailbox.is_at_rest:
            self._make_ready(mailbox)

    def wake_by_signal(self, mailbox: Mailbox) -> None:
        """A signal came: it wakes a run that waits, and an operator's also one that is held back."""
        if mailbox.holding is Holding.SUSPENDED:
            self.wake(mailbox)
        elif mailbox.holding in (Holding.PARKED, Holding.BACKOFF):
            self._tasks.start(self._look_for_decision(mailbox), name="look for a decision")

    async def _look_for_decision(self, mailbox: Mailbox) -> None:
        """Wake a run that is parked or backs off if an operator's signal is there; others wait with it."""
        run_id, holding = mailbox.run_id, mailbox.holding
        try:
            is_decided = run_id is not None and await self._is_decided(run_id)
        except ActorsError as exc:
            if self.is_stopping or not self._mailboxes.is_known(mailbox):
                return
            _log.warning("an operator's decision is looked for again", exc_info=exc)
            asyncio.get_running_loop().call_later(TRY_AGAIN_S, self.wake_by_signal, mailbox)
            return
        if is_decided and mailbox.run_id == run_id and mailbox.holding is holding:
            self.wake(mailbox)

    async def _is_decided(self, run_id: RunId) -> bool:
        """Whether an operator decided what the run is at now; not what it was at before."""
        decisions = [s for s in await self._store.signals(run_id) if s.about is not None]
        found = await self._store.load([run_id]) if decisions else []
        return any(
            decision.about == to_decide(decision.name, loaded.row, loaded.entries)
            for loaded in found
            for decision in decisions
        )

    def try_later(self, mailbox: Mailbox, pause_s: float = TRY_AGAIN_S) -> None:
        """The agent could not be executed: it has its turn again in a moment."""
        if self.is_stopping or not self._mailboxes.is_known(mailbox):
            return
        run_id, turns = mailbox.run_id, mailbox.turns
        mailbox.holding = Holding.BACKOFF if run_id is not None else Holding.NOTHING

        def look() -> None:
            if mailbox.turns != turns:
                return  # it came to a rest, or ended, meanwhile: what is there now has times of its own
            if run_id is not None:
                self.wake(mailbox)
            else:
                self.consider(mailbox)

        asyncio.get_running_loop().call_later(pause_s, look)

    def _make_ready(self, mailbox: Mailbox) -> None:
        if not self._mailboxes.may_start(mailbox):
            mailbox.nudged = mailbox.run_id is not None
            return  # somebody looks at it when it may
        mailbox.holding = Holding.READY
        mailbox.ready_at = asyncio.get_running_loop().time()
        self._ready.offer(mailbox, priority=mailbox.priority, tenant=mailbox.agent_id.tenant)
        self.start_ready()

    def remind(self, mailbox: Mailbox) -> None:
        """Let the run that holds the agent go on by itself at its time, if that is soon."""
        if mailbox.wake_at is not None:
            self.timers.add(mailbox.wake_at, mailbox.agent_id)

    def _on_timer(self, agent_id: AgentId) -> None:
        mailbox = self._mailboxes.find(agent_id)
        if mailbox is None or mailbox.wake_at is None or mailbox.wake_at > self._clock.now():
            return
        self.wake(mailbox)

    def start_ready(self) -> None:
        """Start those who are ready, as far as the capacity goes and limits allow."""
        while self._ready and self.load < self._capacity and not self.is_stopping:
            [mailbox] = self._ready.take(1)
            if not self._mailboxes.may_start(mailbox):
                self.admission.forget(mailbox)
                mailbox.set_aside()
                continue
            entry = self.admission.admit(mailbox)
            if entry is not None:
                self.load += 1
                self._tasks.start(self._drive(entry), name=f"agent {mailbox.agent_id}")

    def leave(self, entry: Entry[Mailbox]) -> None:
        """What was started is over: somebody else has its place."""
        self.load -= 1
        self.admission.leave(entry)
        self.start_ready()

    def clear(self) -> None:
        """Forget everybody."""
        self.timers.close()
        self._ready.clear()
        self.admission.clear()
