"""What an agent executes next: its run that goes on, a queued one, or one for its waiting mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from actors.kernel.runtime.commit import LoadedRun, NewRun
from actors.kernel.runtime.ids import run_id_of_mail
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.tracing import caused_by
from actors.runtime.beginning import row_of
from actors.runtime.environment import Ended
from actors.runtime.execution import Execution
from actors.runtime.forking import begin_fork
from actors.runtime.mailbox import Holding, StartMail, StartRun
from actors.runtime.setbacks import Setbacks
from actors.runtime.shards import run_lease

if TYPE_CHECKING:
    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import Arrived, RunRow
    from actors.kernel.runtime.ids import RunId
    from actors.runtime.endings import Endings
    from actors.runtime.environment import Environment, Refusals
    from actors.runtime.mailbox import Mailbox
    from actors.runtime.mailboxes import Mailboxes
    from actors.runtime.refill import Refill
    from actors.runtime.shards import Shards


class Host(Protocol):
    """What becomes of agents whose run turns out not to be executable: the worker."""

    held: Shards
    endings: Endings

    def hold(self, mailbox: Mailbox, run: RunRow) -> None:
        """The run holds the agent and waits, as its row says."""
        ...

    async def go_on(self, mailbox: Mailbox, ended: Ended) -> Execution | None:
        """The agent's run is over: return the execution of what follows it."""
        ...

    async def cancel_waiting(self, mailbox: Mailbox, run_id: RunId) -> None:
        """End a run that was asked to stop, without its code."""
        ...


class Starts:
    """Makes executions, from what mailboxes hold and the store has.

    Args:
        env: What executions share.
        mailboxes: Say who may start.
        refill: Reads mail that is not in memory.
        host: Is told of runs that cannot be executed.
    """

    def __init__(
        self,
        env: Environment,
        mailboxes: Mailboxes,
        refill: Refill,
        *,
        host: Host,
    ) -> None:
        self._env = env
        self._mailboxes, self._refill, self._worker = mailboxes, refill, host
        self.fresh: dict[RunId, NewRun] = {}
        """Runs submitted here that nobody has to load."""
        self.refusals: dict[RunId, Refusals] = {}
        """What the next execution of a run has to refuse."""
        self.setbacks = Setbacks()
        """Which runs were broken off, and how often."""
        self.blockings: dict[RunId, Blocking] = {}
        """Runs that blocked hosts which had their shards before; kept while this host lives."""

    async def prepare(self, mailbox: Mailbox) -> Execution | None:
        """Return the execution of what is next for the agent; None: nothing can be executed now."""
        mailbox.holding = Holding.EXECUTING  # from here on nobody else starts it
        if mailbox.run_id is not None:
            broke_off = mailbox.taken is not None
            return await self.resume(mailbox, mailbox.run_id, broke_off=broke_off)
        await self._refill.fill(mailbox)
        mailbox.holding = Holding.NOTHING
        if not self._mailboxes.may_start(mailbox):
            return None
        turn = mailbox.next_turn()
        if turn is None:  # what was queued has been cancelled
            self._mailboxes.forget_empty(mailbox)
            return None
        mailbox.holding = Holding.EXECUTING
        match turn:
            case StartRun(run_id=run_id, first=first):
                mailbox.run_id = run_id
                fresh = self.fresh.pop(run_id, None)
                if fresh is None:
                    return await self.resume(mailbox, run_id)
                return self._execution(mailbox, LoadedRun(row_of(fresh), (), (first,)))
            case StartMail(mail=mail):
                agent_id = mailbox.agent_id
                first = mail[0]
                run = NewRun(
                    run_id_of_mail(agent_id, first.sender, first.message.id), agent_id,
                    trace=caused_by(first.message.metadata),
                )  # fmt: skip
                mailbox.run_id = run.run_id
                loaded = LoadedRun(row_of(run), ())
                return self._execution(mailbox, loaded, create=run, mail=mail)

    async def resume(
        self, mailbox: Mailbox, run_id: RunId, *, broke_off: bool = False
    ) -> Execution | None:
        """Return the execution of the run that holds the agent, loaded anew; None as above.

        With `broke_off` the execution before this one did not come to a rest that was written.
        """
        if broke_off:  # what the execution had taken may not have been written: it waits again
            mailbox.taken = None
            mailbox.spill()
        if broke_off or mailbox.wants_mail:
            await self._refill.fill(mailbox)
        found = await self._env.store.load([run_id])
        if mailbox.run_id != run_id:
            return None  # a cancel has ended it meanwhile, and let the agent go on
        if not found or found[0].row.status.is_terminal:
            mailbox.free()
            # Who was told that it ends here looks at its row.
            self._worker.endings.tell(run_id, None)
            return await self._worker.go_on(mailbox, Ended(None))
        loaded = found[0]
        if broke_off and loaded.row.status is RunStatus.PENDING and loaded.row.wake_at is not None:
            mailbox.free()  # that it backs off was written, the answer was lost
            self._worker.hold(mailbox, loaded.row)
            return None
        if loaded.row.cancel_requested is not None:
            await self._worker.cancel_waiting(mailbox, run_id)
            return None
        if loaded.row.fork is not None and loaded.row.last_seq < 0:
            return await self._begin_fork(mailbox, loaded.row)
        was_running, mailbox.recovering = mailbox.recovering, False
        mailbox.nudged = False
        return self._execution(mailbox, loaded, was_running=was_running)

    async def _begin_fork(self, mailbox: Mailbox, run: RunRow) -> Execution | None:
        lease = self._worker.held.get(mailbox.shard)
        if lease is None or not self._mailboxes.may_start(mailbox):
            mailbox.set_aside()
            return None
        await begin_fork(self._env.store, lease, run)
        return await self.resume(mailbox, run.run_id)

    def _execution(
        self,
        mailbox: Mailbox,
        loaded: LoadedRun,
        *,
        create: NewRun | None = None,
        mail: tuple[Arrived, ...] = (),
        was_running: bool = False,
    ) -> Execution | None:
        lease = self._worker.held.get(mailbox.shard)
        if lease is None or not self._mailboxes.may_start(mailbox):
            mailbox.set_aside()
            return None
        agent = self._env.agents.find(mailbox.agent_id)
        if agent is None:
            mailbox.holding = Holding.SUSPENDED
            return None
        run_id = loaded.row.run_id
        return Execution(
            self._env, agent, run_lease(lease, loaded.row), loaded, create, mail, was_running,
            self.refusals.pop(run_id, {}), self.setbacks.refused(run_id, loaded.row.last_seq),
            self.blockings.get(run_id),
        )  # fmt: skip
