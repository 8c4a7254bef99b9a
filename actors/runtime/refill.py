"""Reads waiting mail back into mailboxes that spilled: the oldest rows first, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from actors.errors import ActorsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.runtime.commit import Arrived
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.mailbox import Mailbox
    from actors.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

READ_AGAIN_S: Final = 1.0
"""Pause before mail is read again that the store could not give."""


class Refill:
    """Reads mail for turns, and for runs that receive.

    Args:
        store: Has the rows.
        tasks: Where reading beside a run goes on.
        on_read: Told of a mailbox that was read beside the run that holds it.
    """

    def __init__(
        self, store: RunStore, tasks: TaskScope, on_read: Callable[[Mailbox], None]
    ) -> None:
        self._store, self._tasks, self._on_read = store, tasks, on_read

    async def fill(self, mailbox: Mailbox) -> None:
        """Return when the mailbox has enough for a turn, or all there is.

        What is read is out of date, and left, once the run that holds the agent left memory.

        Raises:
            PersistenceError: The store could not be read.
        """
        turns = mailbox.turns
        while mailbox.is_low and mailbox.turns == turns:
            limit = mailbox.ask()
            page: Sequence[Arrived] | None = None
            try:
                page = await self._store.pending_mail(agent=mailbox.agent_id, limit=limit)
            finally:
                if page is None or mailbox.turns != turns:
                    mailbox.note_mail()
            if mailbox.turns == turns:
                mailbox.refill(page, is_all=len(page) < limit)

    def beside(self, mailbox: Mailbox) -> None:
        """Read while the run that holds the agent goes on, unless that is under way."""
        if not mailbox.is_reading:
            mailbox.is_reading = True
            self._tasks.start(self._fill_beside(mailbox), name=f"mail of {mailbox.agent_id}")

    async def _fill_beside(self, mailbox: Mailbox) -> None:
        try:
            await self.fill(mailbox)
        except ActorsError as exc:
            _log.warning("mail is read again", extra={"agent": str(mailbox.agent_id)}, exc_info=exc)
            await asyncio.sleep(READ_AGAIN_S)
        finally:
            mailbox.is_reading = False
        self._on_read(mailbox)
