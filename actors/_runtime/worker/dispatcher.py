"""The dispatcher: the queue of a host's agents that have work and wait for a slot.

What their mailboxes do not hold is read from the store: waiting messages (`MailboxLoader`), and which run
holds an agent (`Holders`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import Arrived, RunRow, to_decide
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.run_store import RunStore
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.loop.timers import Timers
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.worker.admission import Admission, Permit, ReadyQueue
from actors._runtime.worker.mailbox import Adoption, Holding, Mailbox, holding_of
from actors._runtime.worker.mailbox_table import MailboxTable
from actors.errors import ActorsError

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
        env: The services of the host: the store, and the count of the runs that wait in memory.
        mailboxes: The mailboxes, which decide which agents may start.
        tasks: The scope of the tasks that are started here.
        capacity: Number of agents that may execute at once, besides those whose run waits in memory.
        drive: Function that executes an agent's next run, and then calls `leave`.

    Attributes:
        admission: The limits of the deployment, which decide which of the ready agents may execute.
        timers: The timers of waiting runs.
        load: Number of runs in memory.
        is_stopping: True if nothing starts any more.
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
        self.timers: Timers = Timers(env.clock, self._on_timer)
        self.load: int = 0
        self._starts_left = STARTS
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
        # A limited agent passes its limiter's queue again: others of the limit may wait there.
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
        # The run may have ended, or wait for something else, since the store was asked.
        if is_decided and mailbox.run_id == run_id and mailbox.holding is holding:
            self.wake(mailbox)

    async def _is_decided(self, run_id: RunId) -> bool:
        """Return True if an operator decided about the run's present state, not about an earlier one."""
        decisions = [s for s in await self._store.reads.signals(run_id) if s.about is not None]
        loaded_runs = await self._store.reads.load([run_id]) if decisions else []
        return any(
            decision.about == to_decide(decision.name, loaded.row, loaded.entries)
            for loaded in loaded_runs
            for decision in decisions
        )

    def try_later(self, mailbox: Mailbox, pause_s: float = TRY_AGAIN_S) -> None:
        """Try an agent again after a pause, as it could not be executed."""
        if self.is_stopping or not self._mailboxes.is_known(mailbox):
            return
        # The timer is not cancelled when the run goes on by other means: the revision shows that it came too
        # late.
        run_id, revision = mailbox.run_id, mailbox.revision
        mailbox.holding = Holding.BACKOFF if run_id is not None else Holding.NOTHING

        def retry() -> None:
            if mailbox.revision != revision:
                return  # it was suspended, or has ended, meanwhile: what is there now has times of its own
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
        while self._ready and self._starts_left and not self.is_stopping:
            # A run that waits in memory holds no slot: else a host full of waiting runs would start nothing.
            if self.load - self._idle.count >= self._capacity:
                return  # no slot is free
            [mailbox] = self._ready.take(1)
            if not self._mailboxes.may_start(mailbox):
                self.admission.forget(mailbox)
                mailbox.set_aside()
                continue
            permit = self.admission.admit(mailbox)
            if permit is not None:
                self.load += 1
                self._starts_left -= 1
                if self._starts_left == STARTS - FEW_STARTS:
                    asyncio.get_running_loop().call_soon(self._begin_again)
                self._tasks.start(self._drive(permit), name=f"agent {mailbox.agent_id}")

    def _begin_again(self) -> None:
        self._starts_left = STARTS
        self.start_ready()

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


READ_AGAIN_S: Final = 1.0
"""Pause before messages are read again that the store could not give."""


class MailboxLoader:
    """Reads messages for what starts next, and for runs that receive: the oldest rows first, a few at a time.

    Args:
        store: The store of the rows.
        tasks: The scope of tasks that read beside a run.
        on_read: Called with a mailbox that was read beside the run that holds it.
    """

    def __init__(
        self, store: RunStore, tasks: TaskScope, on_read: Callable[[Mailbox], None]
    ) -> None:
        self._store, self._tasks, self._on_read = store, tasks, on_read

    async def fill(self, mailbox: Mailbox) -> None:
        """Return when the mailbox has enough for a start, or all there is.

        What is read is out of date, and dropped, once the run that holds the agent was evicted.

        Raises:
            PersistenceError: The store could not be read.
        """
        revision = mailbox.revision
        while mailbox.is_low and mailbox.revision == revision:
            limit = mailbox.ask()
            page: Sequence[Arrived] | None = None
            try:
                page = await self._store.backlog.pending_mail(agent=mailbox.agent_id, limit=limit)
            finally:
                # Not read, or out of date: else the mailbox would say that the store has no more.
                if page is None or mailbox.revision != revision:
                    mailbox.note_mail()
            if mailbox.revision == revision:
                mailbox.load_page(page, is_all=len(page) < limit)

    def beside(self, mailbox: Mailbox) -> None:
        """Read while the run that holds the agent goes on, unless that is under way."""
        # One read at a time: a second one would ask the store for the same rows.
        if not mailbox.is_reading:
            mailbox.is_reading = True
            self._tasks.start(self._fill_beside(mailbox), name=f"messages of {mailbox.agent_id}")

    async def _fill_beside(self, mailbox: Mailbox) -> None:
        try:
            await self.fill(mailbox)
        except ActorsError as exc:
            _log.warning(
                "messages are read again", extra={"agent": str(mailbox.agent_id)}, exc_info=exc
            )
            await asyncio.sleep(READ_AGAIN_S)
        finally:
            mailbox.is_reading = False
        self._on_read(mailbox)


class Holders:
    """Reads which run holds an agent of which it is only known that one does: its run slept.

    Args:
        store: The store of the rows.
        tasks: The scope of tasks that ask the store.
        mailboxes: The mailboxes, which say whether the answer is still wanted.
        dispatcher: The dispatcher, which lets the run go on that holds the agent, or what waits for it.
    """

    def __init__(
        self, store: RunStore, tasks: TaskScope, mailboxes: MailboxTable, dispatcher: Dispatcher
    ) -> None:
        self._store, self._tasks = store, tasks
        self._mailboxes, self._dispatcher = mailboxes, dispatcher
        self._numbers = itertools.count()
        self._latest: dict[Mailbox, int] = {}
        """The number of the question of each mailbox whose answer counts."""

    def ask(self, mailbox: Mailbox) -> None:
        """Read which run holds the agent, in a task, until that succeeds.

        A later question makes the answers to earlier ones out of date, and they are dropped.
        """
        number = self._latest[mailbox] = next(self._numbers)
        self._tasks.start(self._ask(mailbox, number), name=f"who holds {mailbox.agent_id}")

    async def _ask(self, mailbox: Mailbox, number: int) -> None:
        while self._latest.get(mailbox) == number:
            try:
                run = await self._store.lists.find_run_for_agent(mailbox.agent_id)
            except ActorsError as exc:
                _log.warning("who holds an agent is read again", exc_info=exc)
                await asyncio.sleep(READ_AGAIN_S)
                continue
            # Asked again meanwhile: this answer may be from before the change that made it necessary.
            if self._latest.get(mailbox) == number:
                del self._latest[mailbox]
                self._apply(mailbox, run)

    def _apply(self, mailbox: Mailbox, run: RunRow | None) -> None:
        """Note which run holds the agent, or that none does any more."""
        if not self._mailboxes.is_known(mailbox) or mailbox.adoption is not Adoption.ASKED:
            return
        was_nudged = mailbox.nudged
        mailbox.free()
        mailbox.adoption = Adoption.DONE
        if run is not None and (run.attempt > 0 or run.status is not RunStatus.PENDING):
            self._dispatcher.hold(mailbox, run)
        if was_nudged:
            self._dispatcher.wake_by_signal(mailbox)
        self._dispatcher.dispatch(mailbox)
