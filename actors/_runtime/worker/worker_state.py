"""The state that the parts of one worker share: agents, their runs, and waiting callers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.rows import NewRun
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import Blocking
from actors._runtime.execution.execution import Execution
from actors._runtime.execution.suspects import SuspectLane
from actors._runtime.journal.amendments import Setbacks
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.verbs.host_services import HostServices, Refusals
from actors._runtime.worker.admission import Permit
from actors._runtime.worker.dispatcher import Dispatcher, Holders
from actors._runtime.worker.held_shards import Completions, HeldShards
from actors._runtime.worker.mailbox import Holding, Mailbox, MailboxCapacity
from actors._runtime.worker.mailbox_table import MailboxTable


class WorkerState:
    """State of a worker. None of it is durable: it is rebuilt from the store when a shard is claimed.

    Attributes:
        store: The store of the rows.
        tasks: The scope of tasks, executions among them.
        held: The shards, and how far each is.
        mailboxes: The agents that are known of, and what waits for them.
        dispatcher: The dispatcher, which starts ready agents.
        executing: The runs in memory.
        fresh: Runs submitted here that need not be loaded.
        refusals: What the next execution of a run has to refuse.
        setbacks: The runs that were broken off, and how often.
        blockings: Runs that blocked hosts which had their shards before; kept while this host lives.
        suspects: The lane in which runs that may have killed hosts execute one at a time.
        completions: The futures of callers of this host that wait for the end of a run.
    """

    store: RunStore
    tasks: TaskScope
    held: HeldShards

    def __init__(
        self,
        env: HostServices,
        mail_capacity: MailboxCapacity,
        *,
        capacity: int,
        drive: Callable[[Permit[Mailbox]], Coroutine[Any, Any, None]],
    ) -> None:
        self.store, self.tasks, self.held = env.store, TaskScope(), HeldShards()
        self.mailboxes: MailboxTable = MailboxTable(
            env,
            self.held,
            mail_capacity,
            on_asked=lambda mailbox: holders.ask(mailbox),  # noqa: PLW0108 - below
        )
        self.dispatcher: Dispatcher = Dispatcher(
            env, self.mailboxes, self.tasks, capacity=capacity, drive=drive
        )
        holders = Holders(env.store, self.tasks, self.mailboxes, self.dispatcher)
        self.executing: dict[RunId, Execution] = {}
        self.fresh: dict[RunId, NewRun] = {}
        self.refusals: dict[RunId, Refusals] = {}
        self.setbacks: Setbacks = Setbacks(env.entropy.random)
        self.blockings: dict[RunId, Blocking] = {}
        self.suspects: SuspectLane[Mailbox] = SuspectLane(self.dispatcher.wake, self._is_coming)
        self.completions: Completions = Completions()

    def forget(self, run_id: RunId) -> None:
        """Remember nothing of a run's last execution: the run has ended, or is another host's."""
        self.fresh.pop(run_id, None)
        self.refusals.pop(run_id, None)
        self.setbacks.forget(run_id)

    def _is_coming(self, mailbox: Mailbox) -> bool:
        is_here = mailbox.holding in (Holding.READY, Holding.EXECUTING)
        return is_here and self.mailboxes.is_known(mailbox)
