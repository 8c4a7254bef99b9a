"""Reads from the store what mailboxes do not hold: waiting messages, and which run holds an agent."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from actors.errors import ActorsError
from actors.kernel.runtime.rows import Arrived, RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.stores.run_store import RunStore
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.worker.dispatcher import Dispatcher
from actors.runtime.worker.mailbox import Adoption, Mailbox
from actors.runtime.worker.mailbox_table import MailboxTable

_log = logging.getLogger("callboard.worker")

READ_AGAIN_S: Final = 1.0
"""Pause before messages are read again that the store could not give."""


class MailboxLoader:
    """Reads messages for what starts next, and for runs that receive: the oldest rows first, a few at a time.

    Args:
        store: Has the rows.
        tasks: The scope of tasks that read beside a run.
        on_read: Called with a mailbox that was read beside the run that holds it.
    """

    def __init__(
        self, store: RunStore, tasks: TaskScope, on_read: Callable[[Mailbox], None]
    ) -> None:
        self._store, self._tasks, self._on_read = store, tasks, on_read

    async def fill(self, mailbox: Mailbox) -> None:
        """Return when the mailbox has enough for a start, or all there is.

        What is read is out of date, and left, once the run that holds the agent was evicted.

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
                if page is None or mailbox.revision != revision:
                    mailbox.note_mail()
            if mailbox.revision == revision:
                mailbox.refill(page, is_all=len(page) < limit)

    def beside(self, mailbox: Mailbox) -> None:
        """Read while the run that holds the agent goes on, unless that is under way."""
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
        store: Has the rows.
        tasks: The scope of tasks that ask the store.
        mailboxes: Say whether that is still wanted.
        dispatcher: Lets the run go on that holds the agent, or what waits for it.
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
        """Read it, for as long as that takes, beside whatever goes on.

        Asked again, what was read before is out of date and dropped.
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
            if self._latest.get(mailbox) == number:
                del self._latest[mailbox]
                self._apply(mailbox, run)

    def _apply(self, mailbox: Mailbox, run: RunRow | None) -> None:
        """Note which run holds the agent; None: none does any more."""
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
