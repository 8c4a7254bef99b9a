"""The mailboxes of one worker: which agents it knows of, and what it may start for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.rows import LoadedRun
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._runtime.loop.timers import Sleepers
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.worker.held_shards import HeldShards
from actors._runtime.worker.mailbox import Adoption, Holding, Mailbox, MailboxCapacity
from actors.errors import RegistrationError


class MailboxTable:
    """Mailboxes by agent, made when something comes and forgotten when they are empty, or their run sleeps.

    Of an agent whose run sleeps only a hash and the run's priority are here: enough to know that it
    is not free. What is in the rows is read when something comes for it.

    Args:
        env: The services of the host: the store, which knows an agent's shard, and the agents served here.
        shards: The shards of the host. Only their agents have mailboxes.
        capacity: The number of messages that all mailboxes together may hold.
        on_asked: Called with a mailbox that needs to know which run holds its agent.
    """

    def __init__(
        self,
        env: HostServices,
        shards: HeldShards,
        capacity: MailboxCapacity,
        *,
        on_asked: Callable[[Mailbox], None],
    ) -> None:
        self._store, self._registry, self._clock = env.store, env.agents, env.clock
        self._shards, self._capacity, self._on_asked = shards, capacity, on_asked
        self._sleepers: dict[ShardId, Sleepers] = {}
        self._by_agent: dict[AgentId, Mailbox] = {}
        self._by_shard: dict[ShardId, dict[AgentId, Mailbox]] = {}

    def __len__(self) -> int:
        return len(self._by_agent)

    def find(self, agent_id: AgentId) -> Mailbox | None:
        """Return the agent's mailbox if it has one."""
        return self._by_agent.get(agent_id)

    def of(
        self, agent_id: AgentId, *, reading: int | None = None, shard: ShardId | None = None
    ) -> Mailbox | None:
        """Return the agent's mailbox, a new one if need be, or None if its shard is not held.

        None, too, for rows of a `reading` that is out of date: see `HeldShards.readings`. `shard` is the
        agent's, if it is known.
        """
        mailbox = self._by_agent.get(agent_id)
        if mailbox is not None:
            shard = mailbox.shard
        elif shard is None:
            shard = self._shard_of(agent_id)
        elif shard not in self._shards:
            shard = None
        if shard is None or (reading is not None and reading < self._shards.read_since[shard]):
            return None
        if mailbox is not None:
            return mailbox
        mailbox = self._new(agent_id, shard)
        if mailbox.adoption is Adoption.DONE:
            self._ask_if_asleep(mailbox)
        return mailbox

    def presumed(self, agent_id: AgentId, run_id: RunId) -> Mailbox | None:
        """Return the agent's mailbox if it has one, or its run sleeps: a hint says that it is this one."""
        mailbox = self._by_agent.get(agent_id)
        if mailbox is not None:
            return mailbox
        shard = self._shard_of(agent_id)
        if shard is None or (priority := self._wakes(agent_id, shard)) is None:
            return None
        mailbox = self._new(agent_id, shard)
        mailbox.presume(run_id, priority)
        return mailbox

    def _shard_of(self, agent_id: AgentId) -> ShardId | None:
        try:
            shard = self._store.shards.shard_of(agent_id)
        except RegistrationError:
            return None  # not declared here: this is a client, or a host of other types
        return shard if shard in self._shards else None

    def _new(self, agent_id: AgentId, shard: ShardId) -> Mailbox:
        adoption = Adoption.UNDER_WAY if shard in self._shards.loading else Adoption.DONE
        if not self._registry.is_served(agent_id):
            adoption = Adoption.NOT_SERVED
        # Messages may wait of which no hint came: they are read before the agent starts.
        is_spilled = shard in self._shards.unread or adoption is not Adoption.DONE
        names = self._shards.lazy.get(shard, ())
        is_lazy = names is None or (bool(names) and str(agent_id) in names)
        mailbox = Mailbox(
            agent_id, shard, self._capacity, adoption=adoption, spilled=is_spilled, lazy=is_lazy
        )
        self._by_agent[agent_id] = mailbox
        self._by_shard.setdefault(shard, {})[agent_id] = mailbox
        return mailbox

    def sleep(self, sleeping_agents: Mapping[ShardId, Mapping[str, int]]) -> None:
        """Note that the runs that hold these agents sleep, with these priorities, as the store says."""
        for shard, agents in sleeping_agents.items():
            if shard in self._shards:  # it may have been lost while it was read
                self._sleepers.setdefault(shard, Sleepers()).update(agents)

    def _falls_asleep(self, mailbox: Mailbox) -> None:
        sleepers = self._sleepers.setdefault(mailbox.shard, Sleepers())
        # The priority is kept: the agent may be ready before the row of its run is read.
        sleepers.add(str(mailbox.agent_id), mailbox.priority)

    def adopted(self, mailbox: Mailbox) -> None:
        """Note that the runs of a mailbox's shard are known, but for those that sleep."""
        mailbox.adoption, mailbox.ended = Adoption.DONE, ()
        self._ask_if_asleep(mailbox)

    def _ask_if_asleep(self, mailbox: Mailbox) -> None:
        was_asleep = self._wakes(mailbox.agent_id, mailbox.shard) is not None
        was_asleep = was_asleep and mailbox.holding is not Holding.EXECUTING
        if was_asleep or (mailbox.presumed and mailbox.has_work):
            self.ask(mailbox)

    def _wakes(self, agent_id: AgentId, shard: ShardId) -> int | None:
        sleepers = self._sleepers.get(shard)
        return sleepers.pop(str(agent_id)) if sleepers else None

    def ask(self, mailbox: Mailbox) -> None:
        """Ask which run holds the agent. Nothing starts before the answer."""
        mailbox.adoption = Adoption.ASKED
        self._on_asked(mailbox)

    def ended(self, mailbox: Mailbox, run_id: RunId) -> None:
        """Note that a run of this agent has ended without executing."""
        mailbox.forget(run_id)
        if mailbox.adoption is Adoption.ASKED:
            self.ask(mailbox)  # the answer that is under way may be from before
        elif mailbox.adoption is Adoption.UNDER_WAY:
            mailbox.ended += (run_id,)

    def ask_anew(self, agent_id: AgentId) -> None:
        """Read the agent's runs again: rows read before may lack what an evicted execution wrote.

        While the shard is read, the assumed holder of the agent may be from such a row.
        """
        mailbox = self.of(agent_id)
        if mailbox is None:
            return
        mailbox.nudged = mailbox.nudged or mailbox.run_id is None
        if mailbox.holding is Holding.EXECUTING:
            return  # its run is loaded, or writes, and is notified if that is not its turn
        if mailbox.adoption is Adoption.UNDER_WAY:
            self._falls_asleep(mailbox)
        elif mailbox.adoption is Adoption.DONE and mailbox.run_id is None:
            self.ask(mailbox)

    def confirms(self, mailbox: Mailbox, loaded_runs: Sequence[LoadedRun]) -> bool:
        """Return True if the run that a hint named sleeps and holds the agent; if not, ask for the runs."""
        if not mailbox.presumed:
            return True
        row = loaded_runs[0].row if loaded_runs else None
        if row is not None and row.status is RunStatus.SUSPENDED and row.parked is None:
            mailbox.confirm()
            return True
        self.ask(mailbox)
        return False

    def is_known(self, mailbox: Mailbox) -> bool:
        """Return True if this is the agent's mailbox now: its shard was not lost and claimed since."""
        return self._by_agent.get(mailbox.agent_id) is mailbox

    def may_start(self, mailbox: Mailbox) -> bool:
        """Return True if the mailbox's agent may execute now."""
        return (
            mailbox.adoption is Adoption.DONE
            and mailbox.shard not in self._shards.draining
            and self.is_known(mailbox)
        )

    def in_shards(self, shards: Iterable[ShardId]) -> list[Mailbox]:
        """Return the mailboxes of these shards."""
        return [m for shard in shards for m in self._by_shard.get(shard, {}).values()]

    def have_lazy_mail(self, shard: ShardId, agents: Collection[str] | None) -> None:
        """Note that these agents of a shard, or any, have messages in the store without a notification."""
        if shard not in self._shards:
            return
        lazy_names, mailboxes = (
            self._shards.lazy.setdefault(shard, set()),
            self._by_shard.get(shard, {}),
        )
        if agents is None:
            self._shards.lazy[shard] = None
        elif lazy_names is not None:
            lazy_names.update(agents)
        for agent_id in mailboxes if agents is None else map(AgentId.parse, agents):
            if agent_id in mailboxes:
                mailboxes[agent_id].lazy = True

    def begin_adoption(self) -> set[ShardId]:
        """Return the shards with work of agents that are served now and whose runs were not read."""
        shards: set[ShardId] = set()
        for mailbox in self._by_agent.values():
            is_served = self._registry.is_served(mailbox.agent_id)
            if mailbox.adoption is Adoption.NOT_SERVED and is_served:
                mailbox.adoption = Adoption.UNDER_WAY
            if mailbox.adoption is Adoption.UNDER_WAY:
                shards.add(mailbox.shard)
        return shards

    def mail_scanned(self, leases: Iterable[ShardLease]) -> None:
        """Note that all waiting messages of these shards were offered: an agent that was not named has none."""
        # A shard that was lost and claimed again during the scan has messages that this scan did not see.
        current = [lease.shard for lease in leases if self._shards.holds(lease)]
        self._shards.unread.difference_update(current)
        for mailbox in self.in_shards(current):
            if self._has_all(mailbox):
                mailbox.spilled = False
            self.forget_empty(mailbox)

    def forget_empty(self, mailbox: Mailbox) -> None:
        """Forget a mailbox of which there is nothing to know, or only that its run sleeps.

        Not while its shard is read: rows from before its run ended would be news for another one.
        """
        if not self.is_known(mailbox) or mailbox.shard in self._shards.loading:
            return
        if mailbox.holding is Holding.SUSPENDED and self._has_all(mailbox):
            mailbox.spilled = False
        if mailbox.is_empty:
            self._delete(mailbox)
        elif mailbox.may_sleep(self._clock.now()):
            self._falls_asleep(mailbox)
            self._delete(mailbox)

    def _has_all(self, mailbox: Mailbox) -> bool:
        """Return True if all messages that waited were announced, and those of this agent are here.

        The shard's may have been read while the store was asked for the run that holds the agent, or
        while that run executed. A read of the agent's messages that is under way decides itself.
        """
        is_known = mailbox.adoption in (Adoption.DONE, Adoption.ASKED)
        is_known = is_known and mailbox.shard not in self._shards.unread
        may_wait = mailbox.missed or mailbox.is_reading or mailbox.holding is Holding.EXECUTING
        return is_known and not may_wait

    def _delete(self, mailbox: Mailbox) -> None:
        del self._by_agent[mailbox.agent_id]
        mailboxes_of_shard = self._by_shard[mailbox.shard]
        del mailboxes_of_shard[mailbox.agent_id]
        if not mailboxes_of_shard:
            del self._by_shard[mailbox.shard]

    def forget_shards(self, shards: Iterable[ShardId]) -> None:
        """Forget the mailboxes of shards that another host serves."""
        for shard in shards:
            self._sleepers.pop(shard, None)
            # A copy: `forget` takes mailboxes out.
            for mailbox in list(self._by_shard.get(shard, {}).values()):
                self.forget(mailbox)

    def forget(self, mailbox: Mailbox, *, keeps_queue: bool = False) -> None:
        """Make another one when something comes: what is known in this one does not count.

        With `keeps_queue` the runs count that wait in it: they were notified since the store was doubted.
        """
        if not self.is_known(mailbox):
            return
        mailbox.spill()
        mailbox.revision += 1  # what is being read for it is left
        self._delete(mailbox)
        if keeps_queue and (new_mailbox := self.of(mailbox.agent_id)) is not None:
            new_mailbox.queue, new_mailbox.priority, mailbox.queue = (
                mailbox.queue,
                mailbox.priority,
                None,
            )

    def invalidate(self, executing_agents: Collection[AgentId]) -> None:
        """Keep only these agents' executions, because the database may have lost its last commits."""
        self._sleepers.clear()
        # A copy: `forget` takes mailboxes out.
        for agent_id, mailbox in list(self._by_agent.items()):
            if agent_id in executing_agents:
                mailbox.invalidate()
            else:
                self.forget(mailbox)

    def clear(self) -> None:
        """Forget everything."""
        self._by_agent.clear()
        self._by_shard.clear()
        self._sleepers.clear()
