"""The mailboxes of one worker: which agents it knows of, and what it may start for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.errors import RegistrationError
from actors.runtime.mailbox import Adoption, Holding, Mailbox, Room

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from actors.kernel.runtime.ids import AgentId, ShardId
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.registry import Registry
    from actors.runtime.shards import Shards


class Mailboxes:
    """Mailboxes by agent, made when something comes and forgotten when they are empty.

    Args:
        store: Knows which shard an agent is in.
        registry: The agents served here.
        shards: Only their agents have mailboxes.
        room: Shared by all.
    """

    def __init__(self, store: RunStore, registry: Registry, shards: Shards, room: Room) -> None:
        self._store, self._registry, self._shards, self._room = store, registry, shards, room
        self._by_agent: dict[AgentId, Mailbox] = {}
        self._by_shard: dict[ShardId, dict[AgentId, Mailbox]] = {}

    def __len__(self) -> int:
        return len(self._by_agent)

    def find(self, agent_id: AgentId) -> Mailbox | None:
        """Return the agent's mailbox if it has one."""
        return self._by_agent.get(agent_id)

    def of(self, agent_id: AgentId) -> Mailbox | None:
        """Return the agent's mailbox, a new one if need be; None when its shard is not held."""
        mailbox = self._by_agent.get(agent_id)
        if mailbox is not None:
            return mailbox
        try:
            shard = self._store.shard_of(agent_id)
        except RegistrationError:
            return None  # not declared here: this is a client, or a host of other types
        if shard not in self._shards:
            return None
        adoption = Adoption.UNDER_WAY if shard in self._shards.loading else Adoption.DONE
        if not self._registry.is_served(agent_id):
            adoption = Adoption.NOT_SERVED
        spilled = shard in self._shards.unread or adoption is not Adoption.DONE
        lazy = shard in self._shards.lazy
        mailbox = Mailbox(
            agent_id, shard, self._room, adoption=adoption, spilled=spilled, lazy=lazy
        )
        self._by_agent[agent_id] = mailbox
        self._by_shard.setdefault(shard, {})[agent_id] = mailbox
        return mailbox

    def is_known(self, mailbox: Mailbox) -> bool:
        """Whether it is the agent's mailbox: its shard was not lost, and claimed again, since."""
        return self._by_agent.get(mailbox.agent_id) is mailbox

    def may_start(self, mailbox: Mailbox) -> bool:
        """Whether its agent may execute now."""
        return (
            mailbox.adoption is Adoption.DONE
            and mailbox.shard not in self._shards.draining
            and self.is_known(mailbox)
        )

    def in_shards(self, shards: Iterable[ShardId]) -> list[Mailbox]:
        """Return the mailboxes of these shards."""
        return [m for shard in shards for m in self._by_shard.get(shard, {}).values()]

    def have_lazy_mail(self, shard: ShardId) -> None:
        """Some agents of a shard have mail in the store that nobody is told of."""
        self._shards.lazy.add(shard)
        for mailbox in self._by_shard.get(shard, {}).values():
            mailbox.lazy = True

    def begin_adoption(self) -> set[ShardId]:
        """Return the shards with work of agents that are served now and whose runs were not read."""
        found: set[ShardId] = set()
        for mailbox in self._by_agent.values():
            is_served = self._registry.is_served(mailbox.agent_id)
            if mailbox.adoption is Adoption.NOT_SERVED and is_served:
                mailbox.adoption = Adoption.UNDER_WAY
            if mailbox.adoption is Adoption.UNDER_WAY:
                found.add(mailbox.shard)
        return found

    def looked_through(self, leases: Iterable[ShardLease]) -> None:
        """All mail that waits in these shards was told: who was not named has none."""
        current = [lease.shard for lease in leases if self._shards.holds(lease)]
        self._shards.unread.difference_update(current)
        for mailbox in self.in_shards(current):
            may_wait = mailbox.missed or mailbox.is_reading or mailbox.holding is Holding.EXECUTING
            if mailbox.adoption is Adoption.DONE and not may_wait:
                mailbox.spilled = False
                self.forget_empty(mailbox)

    def forget_empty(self, mailbox: Mailbox) -> None:
        """Forget a mailbox of which there is nothing to know."""
        if mailbox.is_empty and self.is_known(mailbox):
            self._delete(mailbox)

    def _delete(self, mailbox: Mailbox) -> None:
        del self._by_agent[mailbox.agent_id]
        rest = self._by_shard[mailbox.shard]
        del rest[mailbox.agent_id]
        if not rest:
            del self._by_shard[mailbox.shard]

    def forget_shards(self, shards: Iterable[ShardId]) -> None:
        """Somebody else acts for these shards."""
        for shard in shards:
            for mailbox in list(self._by_shard.get(shard, {}).values()):
                self.forget(mailbox)

    def forget(self, mailbox: Mailbox) -> None:
        """Make another one when something comes: what is known in this one does not count."""
        if self.is_known(mailbox):
            mailbox.spill()
            mailbox.turns += 1  # what is being read for it is left
            self._delete(mailbox)

    def doubt(self, executing: Collection[AgentId]) -> None:
        """The store may be behind what is known here: keep nothing but who executes these agents."""
        for agent_id, mailbox in list(self._by_agent.items()):
            if agent_id in executing:
                mailbox.doubt()
            else:
                self.forget(mailbox)

    def clear(self) -> None:
        """Forget everything."""
        self._by_agent.clear()
        self._by_shard.clear()
