"""The services that executions of one worker share, and the result of an execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from actors._kernel.basics import Clock, Entropy
from actors._kernel.runtime.commit import Committed, Then
from actors._kernel.runtime.effects import ResultCache
from actors._kernel.runtime.hints import Delta, Nudge
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.stores.run_store import RunStore
from actors._runtime.journal.amendments import Setback
from actors._runtime.loop.timers import IdleRuns
from actors._runtime.registry import Registry
from actors._runtime.telemetry.counters import Counters
from actors._runtime.telemetry.spans import Tracing
from actors._runtime.verbs.messaging import ForeignTopics
from actors._runtime.verbs.secrets import Secrets
from actors._runtime.verbs.waits import MessageQueue

Refusals: TypeAlias = "Mapping[str, Exception]"
"""Calls, by position, that raise in the next execution and record that: over budget, or in a cycle."""


def _ignore(*_: object) -> None:
    """Do nothing: the default of a callback."""


def _of_nobody(agent_id: AgentId) -> MessageQueue:
    msg = f"{agent_id} executes without a worker"
    raise NotImplementedError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """The services that executions of one worker share.

    Attributes:
        agents: What is served here, in all versions.
        suspend_after: Seconds a run waits hot before it is evicted, if memory allows.
        may_act: Function that returns whether the lease is good enough to touch the outside world.
        mail_of: Returns the waiting messages of an agent that executes here. Set by the worker, with
            the next three.
        on_routed: Called with inbox rows that a commit wrote here and now.
        on_spawned: Called with a commit that created runs for agents of this host.
        on_cancel: Called with a run that `ctx.cancel` asked to stop, with agent and reason.
        on_delta: Called with live pieces of a run's output.
        on_said: Called with a model call of a run, by its position, whose pieces have ended.
        results: Cache in which results of model calls and at-most-once effects outlive a crash before their
            commit, or None if the log alone holds them.
        on_nudges: Function that gets the changes of a commit for other agents of this host.
        on_end: Called with runs without a parent that have ended here.
        foreign_topics: A follow graph and a fan-out that were handed in.
        tracing: Makes spans; None if there are none.
        counters: Counters of what executions do.
        idle: The count of the executions that wait hot.
        secrets: The secrets of the host, which are looked up at a call that names one.
    """

    store: RunStore
    agents: Registry
    clock: Clock
    entropy: Entropy
    suspend_after: float
    may_act: Callable[[], bool]
    foreign_topics: ForeignTopics
    mail_of: Callable[[AgentId], MessageQueue] = _of_nobody
    on_routed: Callable[[tuple[Arrived, ...]], None] = _ignore
    on_spawned: Callable[[Committed], None] = _ignore
    on_cancel: Callable[[RunId, AgentId, str], None] = _ignore
    on_delta: Callable[[Delta], None] = _ignore
    on_said: Callable[[RunId, str], None] = _ignore
    on_nudges: Callable[[Sequence[Nudge]], None] = _ignore
    on_end: Callable[[AgentId, RunId], None] = _ignore
    results: ResultCache | None = None
    tracing: Tracing | None = None
    counters: Counters = field(default_factory=Counters)
    idle: IdleRuns = field(default_factory=IdleRuns)
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of an execution, for the worker.

    Attributes:
        then: The outcome that was written, or None if nothing was: the lease was lost (`lost`), or the run must
            be loaded again.
        lost: True if the shard belongs to another host.
        again: True if another execution has to begin at once.
        refusals: The calls that the next execution has to refuse.
        setback: The reason why it was broken off, unless the next execution is for the refusals.
        overtaken: True if the run is in the agent's queue again, because something older waits there.
        answered: Sessions in which a model has answered, if the run has ended or suspended.
    """

    then: Then | None
    lost: bool = False
    again: bool = False
    refusals: Refusals = field(default_factory=dict)
    setback: Setback | None = None
    overtaken: bool = False
    answered: tuple[str, ...] = ()
