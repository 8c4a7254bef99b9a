"""Policies: how often an effect is tried, when, and under which name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from actors.kernel.workflow.durable import json_digest
from actors.kernel.workflow.effects import Effect, EffectType


@runtime_checkable
class EffectPolicy(Protocol):
    """Rules of attempts."""

    def max_attempts(self, effect: Effect) -> int:
        """Return how often the effect is tried at most, from 1."""

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """Return the pause behind a failed attempt, counted from 1."""


class DefaultEffectPolicy:
    """A policy of one attempt of each effect, unless set otherwise; pauses double, up to a limit.

    Args:
        default_max_attempts: Of effects that are not named below.
        default_backoff_base: The pause behind the first attempt, in seconds.
        default_backoff_max: The longest pause, in seconds.
        effect_max_attempts: By the name of the effect's type, for example ``llm_call``.
    """

    def __init__(
        self,
        default_max_attempts: int = 1,
        default_backoff_base: float = 1.0,
        default_backoff_max: float = 60.0,
        effect_max_attempts: Mapping[str, int] | None = None,
    ) -> None:
        self._attempts = max(1, default_max_attempts)
        self._base, self._longest = default_backoff_base, default_backoff_max
        self._by_type = {str(name): n for name, n in (effect_max_attempts or {}).items()}

    def max_attempts(self, effect: Effect) -> int:
        """See `EffectPolicy.max_attempts`. An effect may say it itself: payload ``retry.max_attempts``."""
        own = effect.payload.get("retry")
        wanted = own.get("max_attempts") if isinstance(own, dict) else None
        if isinstance(wanted, int) and wanted > 0:
            return wanted
        return max(1, self._by_type.get(effect.type.value, self._attempts))

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """See `EffectPolicy.backoff_seconds`: `base`, twice as much, …, `max`."""
        del effect
        doublings = min(max(attempt - 1, 0), 60)
        return float(min(self._longest, self._base * 2.0**doublings))


class RetryPolicy(DefaultEffectPolicy):
    """Three attempts of a call of a model, two of a batch of tools, one of everything else."""

    def __init__(
        self,
        *,
        llm_max_attempts: int = 3,
        tool_max_attempts: int = 2,
        backoff_base: float = 1.0,
        backoff_max: float = 60.0,
    ) -> None:
        super().__init__(
            default_backoff_base=backoff_base,
            default_backoff_max=backoff_max,
            effect_max_attempts={
                EffectType.LLM_CALL: llm_max_attempts,
                EffectType.TOOL_CALLS: tool_max_attempts,
            },
        )


class NoRetryPolicy(DefaultEffectPolicy):
    """A policy of one attempt of each effect."""

    def __init__(self) -> None:
        super().__init__(default_max_attempts=1)


def compute_idempotency_key(*, run_id: str, node_id: str, effect: Effect, seq: int = 0) -> str:
    """Return the name of an effect of one step: 32 hexadecimal digits.

    The same for all its attempts and behind every crash; another one when the node asks again, since `seq`,
    the number of the step, is another one.
    """
    told = [run_id, node_id, effect.type.value, effect.payload, effect.result_key, seq]
    return json_digest(told)[:32]
