"""Intake: messages, hints, signals and cancels that arrive for agents of this host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from actors._kernel.agent.agent import Agent, HistoryRetention
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.commit import Commit, Committed, Finish
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.rows import Arrived, LoadedRun, NewRun
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.runtime.waits import WaitCycle
from actors._runtime.execution.ending import wait_cycle_error
from actors._runtime.execution.start import ENDED, is_session, queue_item_of_child, with_inbox_turns
from actors._runtime.journal.amendments import refusal_of
from actors._runtime.loop.notifications import Notifications
from actors._runtime.replay.history import History
from actors._runtime.replay.verdict import cancelled_verdict, with_orphans
from actors._runtime.verbs.conversation.sessions import clears_in_store
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.worker.dispatcher import TRY_AGAIN_S, MailboxLoader
from actors._runtime.worker.held_shards import run_lease
from actors._runtime.worker.mailbox import Adoption, Holding, Mailbox
from actors._runtime.worker.worker_state import WorkerState
from actors.errors import ActorsError

_log = logging.getLogger("callboard.worker")


class Intake:
    """The entry of messages, signals and cancels into the worker. All of them are durable rows already.

    Each is passed to the agent's mailbox, or to the run that holds the agent.

    Args:
        env: The services that executions share.
        state: The state of the worker.
        notifications: The source of hints about changes in the store.

    Attributes:
        env: The services that executions share, with callbacks of this intake for changes of other agents.
        loader: The loader of messages that wait in the store.
        held_back: By shard: messages that commits of this host wrote while a batch of the shard becomes rows.
    """

    def __init__(self, env: HostServices, state: WorkerState, notifications: Notifications) -> None:
        self._state = state
        self._mailboxes, self._dispatcher = state.mailboxes, state.dispatcher
        self._executing, self._store = state.executing, env.store
        self.loader: MailboxLoader = MailboxLoader(env.store, state.tasks, self._on_messages_read)
        self.env: HostServices = replace(
            env,
            mail_of=self.mail_of,
            on_routed=self.routed,
            on_spawned=self.spawned,
            on_cancel=self.cancel,
            on_nudges=notifications.publish_all,
        )
        self._publish = notifications.publish
        notifications.subscribe(self._follow, "mail", "signal", "cancel")
        self.held_back: dict[ShardId, list[Arrived]] = {}
        self.lazy_mail_waits: Callable[[ShardId, Collection[str] | None], None] = (
            state.mailboxes.have_lazy_mail
        )
        """Called with agents that have messages without a notification: `MailboxTable.have_lazy_mail`."""

    def _follow(self, nudge: Nudge) -> None:
        """Pass on a hint about rows in the store."""
        if nudge.kind == "mail" and nudge.agent_id is not None:
            self.mail_waits(nudge.agent_id)
        elif nudge.kind == "signal" and nudge.agent_id is not None and nudge.run_id is not None:
            self.signalled(nudge.run_id, nudge.agent_id)
        elif nudge.kind == "cancel" and nudge.run_id is not None:
            # If it starts before that row was read, the row is read first.
            self._state.fresh.pop(nudge.run_id, None)

    def offer(
        self,
        arrived: Arrived,
        *,
        new_run: NewRun | None = None,
        priority: int | None = None,
        shard: ShardId | None = None,
    ) -> None:
        """Take a message whose row is durable already. Ignore it if this host does not own the shard.

        `shard` is the agent's, where it is known.
        """
        mailbox = self._mailboxes.of(arrived.agent_id, shard=shard)
        if mailbox is None or not mailbox.add(arrived):
            return
        if new_run is not None:
            self._state.fresh[new_run.run_id] = new_run
            priority = new_run.priority
        elif arrived.run_id is not None:
            # It joined a queued run: load all its messages.
            self._state.fresh.pop(arrived.run_id, None)
        if mailbox.holding is Holding.NOTHING and priority is not None:
            mailbox.priority = priority
        if arrived.run_id is None:
            self._notify_of_messages(mailbox)
        self._dispatcher.consider(mailbox)

    def routed(self, arrived: Sequence[Arrived]) -> None:
        """Take inbox rows that a commit wrote, after messages that came by the broker before.

        A batch that was committed first may be answered last; its messages of the same sender are
        older.
        """
        held_back = self.held_back
        for item in arrived:
            queue_of_shard = (
                held_back.get(self._store.shards.shard_of(item.agent_id)) if held_back else None
            )
            if queue_of_shard is None:
                self.offer(item)
            else:
                queue_of_shard.append(item)

    def spawned(self, commit: Committed) -> None:
        """Queue the runs that a commit created, each at its agent.

        Those cancelled as they were created never execute: their rows say so.
        """
        cancelled_ids = {nudge.run_id for nudge in commit.nudges if nudge.kind == "cancel"}
        is_stopping = commit.cancel_requested is not None
        for child, arrival in commit.spawned:
            run = child.run
            if is_stopping or run.run_id in cancelled_ids:
                self._publish(Nudge("run", run.agent_id, run.run_id))
                continue
            new_run = run if child.boot is not None else None
            self.offer(queue_item_of_child(child, arrival), new_run=new_run, priority=run.priority)

    def mail_waits(self, agent_id: AgentId, arrival: int | None = None) -> None:
        """Note that an agent has messages in the store: this one, or some. They are read when needed."""
        mailbox = self._mailboxes.of(agent_id)
        # A scan names messages again whose hint came: to read each of them again would cost a query an agent.
        if mailbox is not None and (arrival is None or not mailbox.knows(arrival)):
            mailbox.note_mail()
            self._on_messages_read(mailbox)
            self._dispatcher.consider(mailbox)

    def _on_messages_read(self, mailbox: Mailbox) -> None:
        # The shard may have been lost while the messages were read: its runs here must not be woken.
        if self._mailboxes.is_known(mailbox):
            self._notify_of_messages(mailbox)

    def _notify_of_messages(self, mailbox: Mailbox) -> None:
        """Notify the run that holds the agent of a plain message."""
        if mailbox.run_id is None:
            return
        if mailbox.presumed and mailbox.is_evicted and mailbox.adoption is Adoption.DONE:
            self._mailboxes.ask(mailbox)  # whether it wants messages is not known
            return
        execution = self._executing.get(mailbox.run_id)
        # The execution is being evicted and did not see the message: it is woken again once it is rows.
        if execution is not None and not execution.notify_mail():
            mailbox.nudged = True
        if mailbox.holding is Holding.SUSPENDED and mailbox.wants_mail:
            self._dispatcher.wake(mailbox)

    def signalled(self, run_id: RunId, agent_id: AgentId) -> None:
        """Notify a run of a signal or an answer in the store."""
        mailbox = self._mailboxes.presumed(agent_id, run_id)
        execution = self._executing.get(run_id)
        if execution is not None:
            if not execution.notify_signals() and mailbox is not None:
                mailbox.nudged = True
        elif mailbox is not None and mailbox.may_be_held_by(run_id):
            mailbox.nudged = True
        elif mailbox is not None and mailbox.run_id == run_id:
            self._dispatcher.wake_by_signal(mailbox)

    def fail_cycle(self, cycle: WaitCycle) -> None:
        """Fail a run's wait that can never end, in this execution or the next one."""
        mailbox = self._mailboxes.presumed(cycle.agent_id, cycle.run_id)
        if mailbox is None or mailbox.run_id != cycle.run_id:
            return
        execution = self._executing.get(cycle.run_id)
        if execution is not None and execution.fail_wait(cycle):
            return
        # Kept for the next execution: this one is being evicted, or there is none, and the wait would never
        # end.
        self._state.refusals[cycle.run_id] = {cycle.position: wait_cycle_error(cycle)}
        if execution is not None:
            mailbox.nudged = True
        elif mailbox.holding is Holding.SUSPENDED:
            self._dispatcher.wake(mailbox)

    def cancel(self, run_id: RunId, agent_id: AgentId, reason: str) -> None:
        """Stop a run of this host. The cancel flag is in the store already."""
        execution = self._executing.get(run_id)
        if execution is not None:
            execution.cancel(reason)
            return
        mailbox = self._mailboxes.presumed(agent_id, run_id) or self._mailboxes.of(agent_id)
        if mailbox is not None:
            self._state.tasks.start(
                self._cancel_waiting(mailbox, run_id, reason), name=f"cancel {run_id}"
            )

    def mail_of(self, agent_id: AgentId) -> WaitingMail:
        """Return the waiting messages of an agent that executes here, for `ctx.receive`."""
        mailbox = self._mailboxes.find(agent_id)
        assert mailbox is not None, "an agent that executes has a mailbox"
        return WaitingMail(mailbox, self.loader.beside)

    async def _cancel_waiting(self, mailbox: Mailbox, run_id: RunId, reason: str) -> None:
        try:
            await self.cancel_waiting(mailbox, run_id)
        except ActorsError as exc:
            # The next owner of the shard finds the cancel flag in the row.
            if self._dispatcher.is_stopping or not self._mailboxes.is_known(mailbox):
                return
            _log.warning("the cancel of a run is tried again", extra={"run": run_id}, exc_info=exc)
            if refusal_of(exc) is None:  # what the store refuses is left to the scans
                loop = asyncio.get_running_loop()
                loop.call_later(TRY_AGAIN_S, self.cancel, run_id, mailbox.agent_id, reason)

    async def cancel_waiting(self, mailbox: Mailbox, run_id: RunId) -> None:
        """End a run that is not in memory: its terminal entry is written without its code."""
        loaded_runs = await self._store.reads.load([run_id])
        lease = self._state.held.get(mailbox.shard)
        if mailbox.run_id == run_id:
            # A hint named the run, and may be older than its end: the row has to say that it holds the agent.
            self._mailboxes.confirms(mailbox, loaded_runs)
        if not loaded_runs or lease is None:
            self._mailboxes.forget_empty(mailbox)
            return
        is_over = await self._end_cancelled(lease, loaded_runs[0])
        if not is_over:
            self._mailboxes.forget_empty(mailbox)
            return
        self._state.forget(run_id)
        execution = self._executing.get(run_id)
        if execution is not None:
            # It has begun meanwhile, in vain, and learns that at its next flush.
            execution.cancel(loaded_runs[0].row.cancel_requested or "")
            return
        self._mailboxes.ended(mailbox, run_id)
        self._state.completions.complete(run_id, None)
        self.env.on_end(mailbox.agent_id, run_id)
        self._dispatcher.consider(mailbox)
        self._mailboxes.forget_empty(mailbox)

    def _agent(self, agent_id: AgentId) -> tuple[Agent | None, bool]:
        """Return the agent, and whether turns of its runs go when they end; None if its code cannot say."""
        try:
            agent = self.env.agents.find(agent_id)
            return agent, clears_in_store(agent)
        # An author's factory may raise anything; the cancelled run has to end without it.
        except Exception:  # noqa: BLE001 - code of the author's
            _log.warning(
                "an agent could not be made", extra={"agent": str(agent_id)}, exc_info=True
            )
            return None, False

    async def _end_cancelled(self, lease: ShardLease, loaded_run: LoadedRun) -> bool:
        """Write the terminal entry of a run without its code; return False if the run has changed meanwhile."""
        run = loaded_run.row
        if run.status.is_terminal:
            return True
        policy = run.supervision.retention if run.supervision is not None else HistoryRetention.RUN
        history = History.of(loaded_run.entries)
        verdict = with_orphans(
            cancelled_verdict(run.cancel_requested or ""), policy, history.unjoined_children
        )
        agent, clears_turns = self._agent(run.agent_id)
        if agent is not None:
            is_of_session = is_session(agent)
        else:  # it is not served here, but the rows have its session
            is_of_session = await self._store.data.sessions.get(run.agent_id) is not None
        turns: tuple[NewTurn, ...] = ()
        if is_of_session and loaded_run.entries:
            verdict, turns = with_inbox_turns(verdict, loaded_run, history)
        outcome = await self._store.commits.commit(
            Commit(
                run_lease(lease, run),
                run.last_seq,
                verdict.entries,
                verdict.then,
                attempt=run.attempt,
                orphans=policy,
                turns=turns,
                clear_turns=clears_turns,
                session=ENDED if is_of_session else None,
            )
        )
        if not isinstance(outcome, Committed):
            # It has ended, continues, or has another owner: the host that changed it sees its cancel flag.
            _log.debug(
                "a cancel met a change of the run", extra={"run": run.run_id, "why": str(outcome)}
            )
            return False
        env = self.env
        env.on_nudges(outcome.nudges)
        assert isinstance(verdict.then, Finish)
        env.counters.count_end(verdict.then)
        if env.tracing is not None:
            env.tracing.export_run(run, loaded_run.entries, verdict.then, at=env.clock.now())
        return True


class WaitingMail:
    """The plain messages of a mailbox, as the run that holds it may receive them.

    Args:
        mailbox: The agent's.
        read_more: Called when few are left here and the store has more. It notifies the run when they are read.
    """

    def __init__(self, mailbox: Mailbox, read_more: Callable[[Mailbox], None]) -> None:
        self._mailbox, self._read_more = mailbox, read_more

    def first(self) -> Arrived | None:
        """Return the next one. If none is here, ask the store for messages that it may have."""
        if not self._mailbox.has_mail and self._mailbox.is_low:
            self._read_more(self._mailbox)
        return self._mailbox.first_mail()

    def take(self) -> Arrived | None:
        """Remove and return the next one."""
        arrived = self._mailbox.take_mail()
        if self._mailbox.is_low:
            self._read_more(self._mailbox)
        return arrived

    def put_back(self, arrived: Arrived) -> None:
        """Put a message back that may not be taken yet: an older one of its sender has to be read first."""
        self._mailbox.put_back(arrived.arrival)
