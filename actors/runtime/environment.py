"""What executions of one worker share, and what one tells when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from actors.runtime.meters import Meters
from actors.runtime.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.runtime.commit import Arrived, Spawned, Then
    from actors.kernel.runtime.effects import ResultCache
    from actors.kernel.runtime.ids import AgentId, RunId
    from actors.kernel.runtime.live import Delta
    from actors.kernel.runtime.store import Nudge, RunStore
    from actors.runtime.following import ForeignTopics
    from actors.runtime.registry import Registry
    from actors.runtime.setbacks import Setback
    from actors.runtime.tracing import Tracing
    from actors.runtime.waits import Mail

Refusals: TypeAlias = "Mapping[str, Exception]"
"""Calls, by position, that raise in the next execution and record that: over budget, or in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What executions of one worker share.

    Attributes:
        agents: What is served here, in all versions.
        suspend_after: Seconds a run waits hot before it leaves memory.
        mail_of: Returns the waiting messages of an agent that executes here.
        on_routed: Told of inbox rows that a turn wrote here and now.
        may_act: Whether the lease is good enough to touch the outside world.
        on_delta: Told of pieces of what a run says live.
        results: Where results of model calls and at-most-once effects outlive a crash before the
            commit; None: the log alone holds them.
        on_nudges: Told what a turn changed for other agents of this host.
        on_spawned: Told of children for agents of this host, with their places in the queues.
        on_cancel: Told of a run that `ctx.cancel` asked to stop, with agent and reason.
        foreign_topics: A follow graph and a fan-out that were handed in.
        tracing: Makes spans; None: there are none.
        meters: Counts what executions do.
        secrets: Looked up at a call that names one.
    """

    store: RunStore
    agents: Registry
    clock: Clock
    entropy: Entropy
    suspend_after: float
    mail_of: Callable[[AgentId], Mail]
    on_routed: Callable[[tuple[Arrived, ...]], None]
    on_delta: Callable[[Delta], None]
    may_act: Callable[[], bool]
    on_nudges: Callable[[Sequence[Nudge]], None]
    on_spawned: Callable[[Sequence[tuple[Spawned, int]]], None]
    on_cancel: Callable[[RunId, AgentId, str], None]
    foreign_topics: ForeignTopics
    results: ResultCache | None = None
    tracing: Tracing | None = None
    meters: Meters = field(default_factory=Meters)
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True)
class Ended:
    """What the worker has to know when an execution is over.

    Attributes:
        then: What was written; None: nothing was, as the lease was lost (`lost`), or the run must be
            loaded again.
        lost: The shard belongs to somebody else.
        again: Another execution is wanted at once.
        output: What the code returned.
        refusals: What that execution has to refuse.
        setback: Why it was broken off, unless it is wanted for what it has to refuse.
    """

    then: Then | None
    lost: bool = False
    again: bool = False
    output: Any = None
    refusals: Refusals = field(default_factory=dict)
    setback: Setback | None = None
