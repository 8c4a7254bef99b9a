"""What executions tell the runtime they are part of, which is made after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.runtime.store import Nudge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.runtime.commit import Arrived, Spawned
    from actors.kernel.runtime.ids import AgentId, RunId
    from actors.runtime.mail import MailService
    from actors.runtime.ownership import Ownership
    from actors.runtime.waits import Mail
    from actors.runtime.worker import Worker


class Wires:
    """Passes on what is told; nothing is before `join`."""

    _worker: Worker
    _ownership: Ownership
    _mail: MailService | None

    def join(self, worker: Worker, ownership: Ownership, mail: MailService | None) -> None:
        """Say who is told."""
        self._worker, self._ownership, self._mail = worker, ownership, mail

    def mail_of(self, agent_id: AgentId) -> Mail:
        """See `Environment.mail_of`."""
        return self._worker.mail_of(agent_id)

    def on_routed(self, arrived: tuple[Arrived, ...]) -> None:
        """See `Environment.on_routed`."""
        (self._worker if self._mail is None else self._mail).routed(arrived)

    def on_nudges(self, nudges: Sequence[Nudge]) -> None:
        """See `Environment.on_nudges`."""
        for nudge in nudges:
            self._ownership.follow(nudge)

    def on_spawned(self, children: Sequence[tuple[Spawned, int]]) -> None:
        """See `Environment.on_spawned`."""
        self._worker.spawned(children)

    def on_cancel(self, run_id: RunId, agent_id: AgentId, reason: str) -> None:
        """See `Environment.on_cancel`."""
        self._worker.cancel(run_id, agent_id, reason)

    def on_inbox_deliver(self, agent_id: AgentId) -> None:
        """Somebody wrote a message through the runtime's inbox."""
        self._ownership.follow(Nudge("mail", agent_id))
