"""The dispatcher: the queue of a host's agents that have work and wait for a slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from actors.errors import ActorsError
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RunRow, to_decide
from actors.kernel.runtime.scheduler import RunStatus
from actors.runtime.context.host_services import HostServices
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.loop.timers import Timers
from actors.runtime.worker.admission import Admission, Permit
from actors.runtime.worker.mailbox import Holding, Mailbox, holding_of
from actors.runtime.worker.mailbox_table import MailboxTable
from actors.runtime.worker.ready_queue import ReadyQueue

_log = logging.getLogger("callboard.worker")

STARTS: Final = 64
"""Maximum number of agents that start before the dispatcher yields to the event loop.

During the yield earlier executions can end. More starts at once would take memory and be no faster.
"""
FEW_STARTS: Final = 8
"""Number of starts after which a callback of the loop resets the count; fewer starts schedule no callback."""

TRY_AGAIN_S: Final = 1.0
"""Seconds before a retry of a run after the store could not be read or written."""


class Dispatcher:
    """Starts agents that have something to do, as far as the capacity goes and limits allow.

    Args:
        env: Has the store, with signals that may wake a parked run, and the runs that wait in memory.
        mailboxes: Decide which agents may start.
        tasks: What is started runs here.
        capacity: Number of agents that may execute at once, besides those whose run waits in memory.
        drive: Function that executes an agent's next run, and then calls `leave`.

    Attributes:
        admission: The limits of the deployment, which decide which of the ready agents may execute.
        timers: The timers of waiting runs.
        load: Number of runs in memory.
        is_stopping: Nothing starts any more.
    """

    def __init__(
        self,
        env: HostServices,
        mailboxes: MailboxTable,
        tasks: TaskScope,
        *,
        capacity: int,
        drive: Callable[[Permit[Mailbox]], Coroutine[Any, Any, None]],
    ) -> None:
        self._store, self._mailboxes, self._clock, self._tasks = (
            env.store,
            mailboxes,
            env.clock,
            tasks,
        )
        self._capacity, self._idle, self._drive = capacity, env.idle, drive
        env.idle.on_idle = self.start_ready
        self._ready: ReadyQueue[Mailbox] = ReadyQueue()
        self.admission: Admission[Mailbox] = Admission(
            self._ready, clock=lambda: asyncio.get_running_loop().time()
        )
        self.timers = Timers(env.clock, self._on_timer)
        self.load = 0
        self._left = STARTS
        self.is_stopping = False

    @property
    def backlog(self) -> int:
        """The number of agents that are ready and do not execute yet."""
        return len(self._ready)

    def dispatch(self, mailbox: Mailbox) -> None:
        """Start the agent's next run if there is one, as the agent may start now."""
        self.consider(mailbox)
        if mailbox.nudged:
            self.wake(mailbox)
        self._mailboxes.forget_empty(mailbox)

    def consider(self, mailbox: Mailbox) -> None:
        """Let the agent start what is next for it, if no run holds it."""
        if mailbox.holding is Holding.NOTHING and mailbox.has_work:
            self._make_ready(mailbox)

    def goes_on(self, mailbox: Mailbox) -> bool:
        """Return True if an agent whose run has ended starts its next run at once, ahead of the queue."""
        is_next = mailbox.holding is Holding.NOTHING and mailbox.has_work and not self._ready
        is_next = is_next and not self.admission.concerns(mailbox.agent_id)
        return is_next and self._mailboxes.may_start(mailbox)

    def wake(self, mailbox: Mailbox) -> None:
        """Let the run that holds the agent go on, if it waits."""
        if mailbox.is_evicted:
            self._make_ready(mailbox)

    def hold(self, mailbox: Mailbox, run: RunRow) -> None:
        """Note that a started run holds its agent, and waits as its row says."""
        # What came before this was known was a signal, and no decision.
        was_nudged, mailbox.nudged = mailbox.nudged, False
        mailbox.run_id, mailbox.priority = run.run_id, run.priority
        mailbox.recovering = run.status is RunStatus.RUNNING
        wants_mail = run.wake is not None and run.wake.message
        mailbox.evict(holding_of(run), wake_at=run.wake_at, wants_mail=wants_mail)
        has_mail = wants_mail and (mailbox.has_mail or mailbox.missed)
        if has_mail or mailbox.recovering or run.cancel_requested is not None:
            self.wake(mailbox)
        else:
            self.remind(mailbox)
        if was_nudged:
            self.wake_by_signal(mailbox)

    def wake_by_signal(self, mailbox: Mailbox) -> None:
        """Wake a suspended run for a signal. A decision also wakes a parked run, or one in backoff."""
        if mailbox.holding is Holding.SUSPENDED:
            self.wake(mailbox)
        elif mailbox.holding in (Holding.PARKED, Holding.BACKOFF):
            self._tasks.start(self._poll_decision(mailbox), name="poll for a decision")

    async def _poll_decision(self, mailbox: Mailbox) -> None:
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
        """Return True if an operator decided about the run's present state, not about an earlier one."""
        decisions = [s for s in await self._store.reads.signals(run_id) if s.about is not None]
        found = await self._store.reads.load([run_id]) if decisions else []
        return any(
            decision.about == to_decide(decision.name, loaded.row, loaded.entries)
            for loaded in found
            for decision in decisions
        )

    def try_later(self, mailbox: Mailbox, pause_s: float = TRY_AGAIN_S) -> None:
        """Try an agent again after a pause, as it could not be executed."""
        if self.is_stopping or not self._mailboxes.is_known(mailbox):
            return
        run_id, revision = mailbox.run_id, mailbox.revision
        mailbox.holding = Holding.BACKOFF if run_id is not None else Holding.NOTHING

        def retry() -> None:
            if mailbox.revision != revision:
                return  # it came to a rest, or ended, meanwhile: what is there now has times of its own
            if run_id is not None:
                self.wake(mailbox)
            else:
                self.consider(mailbox)

        asyncio.get_running_loop().call_later(pause_s, retry)

    def _make_ready(self, mailbox: Mailbox) -> None:
        if not self._mailboxes.may_start(mailbox):
            mailbox.nudged = mailbox.nudged or mailbox.run_id is not None
            return  # it is considered again when it may start
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
        """Start ready agents, as far as the capacity and the limits allow."""
        while self._ready and self._has_free_slot and self._left and not self.is_stopping:
            [mailbox] = self._ready.take(1)
            if not self._mailboxes.may_start(mailbox):
                self.admission.forget(mailbox)
                mailbox.set_aside()
                continue
            permit = self.admission.admit(mailbox)
            if permit is not None:
                self.load += 1
                self._left -= 1
                if self._left == STARTS - FEW_STARTS:
                    asyncio.get_running_loop().call_soon(self._begin_again)
                self._tasks.start(self._drive(permit), name=f"agent {mailbox.agent_id}")

    def _begin_again(self) -> None:
        self._left = STARTS
        self.start_ready()

    @property
    def _has_free_slot(self) -> bool:
        return self.load - self._idle.count < self._capacity

    def leave(self, permit: Permit[Mailbox]) -> None:
        """Give up the slot of an execution that is over, and start the next ready agents."""
        self.load -= 1
        self.admission.release(permit)
        self.start_ready()

    def clear(self) -> None:
        """Drop all agents and timers."""
        self.timers.close()
        self._ready.clear()
        self.admission.clear()
