"""Effects: what an agent does to the world, recorded so that it is not done again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from actors.errors import NotSerializableError
from actors.kernel.json import JsonValue, canonical_json

if TYPE_CHECKING:
    from actors.kernel.runtime.ids import RunId

EffectId: TypeAlias = str
"""Full SHA-256 in hexadecimal."""


class EffectMode(StrEnum):
    """What may happen when a crash leaves an effect without a recorded result.

    IDEMPOTENT: it is executed again, with the same idempotency key (its effect id).
    AT_MOST_ONCE: it is never executed again; it is *in doubt* until reconciled or resolved.
    """

    IDEMPOTENT = "idempotent"
    AT_MOST_ONCE = "at_most_once"


def args_hash(args: JsonValue) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the canonical JSON of `args`."""
    return text_hash(canonical_json(args))


def text_hash(canonical: str) -> str:
    """Return `args_hash` of a value whose canonical JSON is at hand."""
    try:
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
    except UnicodeEncodeError as exc:
        problem = "text with half a surrogate pair"
        raise NotSerializableError("arguments", "str", problem) from exc


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing an agent asks for. `spec` is JSON data describing it."""

    id: EffectId
    kind: str
    spec: JsonValue

    @staticmethod
    def make_id(run_id: RunId, position: str, kind: str, args: JsonValue) -> EffectId:
        """Return the id of the effect of `kind` with `args` at `position` of a run.

        The same on every replay, process and PYTHONHASHSEED; the order of keys does not matter.

        Source: seed 001, Journal; DESIGN §9, positions.
        """
        return Effect.id_of_text(run_id, position, kind, canonical_json(args))

    @staticmethod
    def id_of_text(run_id: RunId, position: str, kind: str, canonical_args: str) -> EffectId:
        """Return `make_id` of arguments whose canonical JSON is at hand: the same bytes are hashed."""
        head = canonical_json([run_id, position, kind])
        return hashlib.sha256(f"{head[:-1]},{canonical_args}]".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class EffectResult:
    """What an effect gave: a value, or an error with its type.

    Attributes:
        effect_id: The effect this belongs to.
        status: ``ok`` or ``error``.
        value: JSON data for ``ok``; the error's message for ``error``.
        error_type: Qualified class name, for ``error``.
        artifact_ref: Where a large value is stored instead.
    """

    effect_id: EffectId
    status: Literal["ok", "error"]
    value: JsonValue
    error_type: str | None = None
    artifact_ref: str | None = None


class ResultCache(Protocol):
    """Results on their way into the log, for whoever recovers the run when they do not arrive.

    Never the truth: what it loses, or never got, only leaves the crash window as wide as without it.
    """

    def keep(self, key: str, payload: dict[str, JsonValue]) -> None:
        """Let a result outlive this process, beside the commit; the first one of a key stays.

        Returns at once, never raises, and takes the payload as it is now.

        Args:
            key: Names one execution of one effect, see `result_key`.
            payload: Exactly what the log's entry of the result will hold.
        """
        ...

    async def find(self, key: str) -> dict[str, JsonValue] | None:
        """Return what was kept under `key`, or None; soon, and without an error, whatever is broken."""
        ...


def result_key(effect_id: EffectId, *, intent: int | None = None, attempt: int = 0) -> str:
    """Return the name of one execution of an effect: what a `ResultCache` keeps its result under.

    The id alone names every execution that there ever is at a position with the same arguments. An
    at-most-once effect executes once per intent, which is durable before: its seq tells them apart,
    also when an operator or `reconcile` lets it execute anew. Of others (`intent` is None) all
    executions of one attempt are as good as each other; a new attempt wants a new result.
    """
    return f"{effect_id}:a{attempt}" if intent is None else f"{effect_id}:i{intent}"


class Journal(Protocol):
    """Results by effect id; narrows the crash window beside the log, which is the truth."""

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """Return what was recorded for this effect, or None."""
        ...

    async def record(self, result: EffectResult) -> None:
        """Keep a result; the first one wins, another for the same effect is ignored."""
        ...
