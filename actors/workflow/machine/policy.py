"""The policies of effects: the number of attempts, the pauses between them, and the idempotency key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from actors.kernel.workflow.durable import json_digest
from actors.kernel.workflow.effects import Effect, EffectType


@runtime_checkable
class EffectPolicy(Protocol):
    """The rules of an effect's attempts."""

    def max_attempts(self, effect: Effect) -> int:
        """Return the maximum number of attempts of the effect, at least 1."""

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """Return the pause after a failed attempt, in seconds. Attempts are counted from 1."""


class DefaultEffectPolicy:
    """A policy with one attempt of each effect, unless set otherwise. Pauses double up to a limit.

    Args:
        default_max_attempts: Attempts of effects that `effect_max_attempts` does not name.
        default_backoff_base: The pause after the first attempt, in seconds.
        default_backoff_max: The longest pause, in seconds.
        effect_max_attempts: Attempts by the name of the effect's type, for example ``llm_call``.
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
        """See `EffectPolicy.max_attempts`. An effect may set it in its payload as ``retry.max_attempts``."""
        own = effect.payload.get("retry")
        wanted = own.get("max_attempts") if isinstance(own, dict) else None
        if isinstance(wanted, int) and wanted > 0:
            return wanted
        return max(1, self._by_type.get(effect.type.value, self._attempts))

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """See `EffectPolicy.backoff_seconds`.

        The pause is the base, then doubles each time, up to the maximum.
        """
        del effect
        doublings = min(max(attempt - 1, 0), 60)
        return float(min(self._longest, self._base * 2.0**doublings))


class RetryPolicy(DefaultEffectPolicy):
    """A policy with three attempts of a model call, two of a batch of tools, and one of every other effect."""

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
    """A policy with one attempt of each effect, unless the effect's payload sets more."""

    def __init__(self) -> None:
        super().__init__(default_max_attempts=1)


def compute_idempotency_key(*, run_id: str, node_id: str, effect: Effect, seq: int = 0) -> str:
    """Return the idempotency key of an effect of one step: 32 hexadecimal digits.

    All attempts of the effect have the same key, also after a crash. If the node asks again, the key is another
    one, since `seq`, the number of the step, has changed.
    """
    told = [run_id, node_id, effect.type.value, effect.payload, effect.result_key, seq]
    return json_digest(told)[:32]
