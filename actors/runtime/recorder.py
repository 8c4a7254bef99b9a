"""What all verbs of one execution of a run share."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from actors.errors import NonDeterminismError
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.tracing import TRACE_PARENT
from actors.runtime.meters import Meters

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.effects import ResultCache
    from actors.kernel.runtime.ids import AgentId, RunId
    from actors.runtime.answers import Answers
    from actors.runtime.history import History, Place
    from actors.runtime.lifecycle import Hooks
    from actors.runtime.run_log import RunLog
    from actors.runtime.signals import Signals
    from actors.runtime.tracing import TurnSpans
    from actors.runtime.turnstile import Turnstile

LOOK_AGAIN_S: Final = 0.05
"""How often an effect that may not begin looks at the lease."""


@dataclass(slots=True)
class Recorder:
    """One execution of one run: its memory, its turns, its writing end."""

    row: RunRow
    history: History
    turnstile: Turnstile
    log: RunLog
    signals: Signals
    answers: Answers
    clock: Clock
    entropy: Entropy
    may_act: Callable[[], bool]
    """False near the end of a lease that was not renewed: nothing outside is touched then."""
    hooks: Hooks
    """The agent's observers."""
    results: ResultCache | None = None
    """Where results outlive a crash that keeps them from the log."""
    recovering: bool = False
    """An execution before this one may have been broken off, its last results missing in the log. Until
    this one has recorded a result of its own; what comes behind that was never begun before."""
    unrepeatable: int = 0
    """How many at-most-once effects were begun and have no durable result yet."""
    refusals: dict[str, Exception] = field(default_factory=dict)
    """Calls that raise, by position, and record that: over budget, or waiting in a circle."""
    refused_keys: Counter[str] = field(default_factory=Counter)
    """How often questions with an idempotency key were refused, in this generation."""
    one_model_call: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a model call is counted against the tree's budget: a turn begins one at most."""
    diverged: NonDeterminismError | None = None
    """Set once the code asked for something else than what the log has; nothing executes then."""
    spans: TurnSpans | None = None
    """Tells what is done live; None: nobody listens."""
    meters: Meters = field(default_factory=Meters)
    """Counts it."""

    @property
    def run_id(self) -> RunId:
        """The run that executes."""
        return self.row.run_id

    @property
    def agent_id(self) -> AgentId:
        """Whose run it is."""
        return self.row.agent_id

    def meet(
        self, position: str, kinds: tuple[EntryKind, ...], what: str, digest: str
    ) -> Place | None:
        """See `History.meet`; a divergence stops the whole run, whatever the code catches."""
        try:
            return self.history.meet(position, kinds, what, digest)
        except NonDeterminismError as exc:
            self.diverged = exc
            self.turnstile.unwind(exc)
            raise

    @property
    def carrier(self) -> dict[str, str]:
        """The trace context of what the run sends: the same on replay. A copy, for one message."""
        if self.spans is not None:
            return {TRACE_PARENT: self.spans.header}
        return {TRACE_PARENT: self.row.trace} if self.row.trace is not None else {}

    async def until_may_act(self) -> None:
        """Return when the lease is good again; a lost one drops the run meanwhile."""
        while not self.may_act():  # noqa: ASYNC110 - the lease is renewed by a thread
            await asyncio.sleep(LOOK_AGAIN_S)

    def instant(
        self, verb: str, words: list[JsonValue], produce: Callable[[], JsonValue]
    ) -> JsonValue:
        """Return a recorded value, or produce and record one; it rides with the next flush."""
        branch = self.turnstile.enter(verb)
        position = branch.take_position()
        digest = args_hash(words)
        place = self.meet(position, (EntryKind.EFFECT_RESULT,), verb, digest)
        if place is not None and place.end is not None:
            return place.end.payload.get("value")
        value = produce()
        self.log.record(EntryKind.EFFECT_RESULT, position, value_payload(verb, digest, value))
        return value

    @property
    def attempt(self) -> int:
        """Which attempt this is, 1 for the first."""
        return self.history.attempt

    @property
    def generation_prefix(self) -> str:
        """What stands in front of every position after `continue_as_new`, for example ``2:``."""
        return f"{self.history.generation}:" if self.history.generation else ""


def value_payload(verb: str, digest: str, value: JsonValue) -> dict[str, JsonValue]:
    """Return the payload of the entry that keeps what an instant verb returned."""
    return {"effect": verb, "hash": digest, "status": "ok", "value": value}
