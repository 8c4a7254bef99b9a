"""Effects: what an agent does to the world, recorded so that it is not done again."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, TypeAlias

from actors._kernel.json import JsonValue, canonical_json
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import NotSerializableError

EffectId: TypeAlias = str
"""Full SHA-256 in hexadecimal."""
GRAPH: Final = "graph"
"""The verb in entries of effects that a graph asked for."""


class EffectMode(StrEnum):
    """The handling of an effect that a crash leaves without a recorded result.

    IDEMPOTENT: it is executed again, with the same idempotency key (its effect id).
    AT_MOST_ONCE: it is never executed again; it is *in doubt* until reconciled or resolved.
    """

    IDEMPOTENT = "idempotent"
    AT_MOST_ONCE = "at_most_once"


def args_hash(args: JsonValue) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the canonical JSON of `args`."""
    return text_hash(canonical_json(args))


def text_hash(canonical_text: str) -> str:
    """Return `args_hash` of a value whose canonical JSON is at hand."""
    try:
        return hashlib.sha256(canonical_text.encode()).hexdigest()[:16]
    except UnicodeEncodeError as exc:
        problem = "text with half a surrogate pair"
        raise NotSerializableError("arguments", "str", problem) from exc


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect that an agent requests. `spec` is JSON data that describes it."""

    id: EffectId
    kind: str
    spec: JsonValue

    @staticmethod
    def make_id(run_id: RunId, position: str, kind: str, args: JsonValue) -> EffectId:
        """Return the id of the effect of `kind` with `args` at `position` of a run.

        The same on every replay, process and PYTHONHASHSEED; the order of keys does not matter.

        Source: seed 001, Journal; docs/replay.md, "Positions".
        """
        return Effect.id_of_text(run_id, position, kind, canonical_json(args))

    @staticmethod
    def id_of_text(run_id: RunId, position: str, kind: str, canonical_args: str) -> EffectId:
        """Return `make_id` of arguments whose canonical JSON is at hand: the same bytes are hashed."""
        head = canonical_json([run_id, position, kind])
        return hashlib.sha256(f"{head[:-1]},{canonical_args}]".encode()).hexdigest()


def key_of_message(agent: AgentId, sender: str, message_id: str, name: str) -> str:
    """Return the idempotency key of what an agent does by this name for a message.

    Full SHA-256 in hexadecimal. The same in whatever run the message is handled, and whatever else
    that run does: also when a database that lost its last commits has divided the same messages among other
    runs.
    """
    parts_json = canonical_json(["message", str(agent), sender, message_id, name])
    return hashlib.sha256(parts_json.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class EffectResult:
    """The result of an effect: a value, or an error with its type.

    Attributes:
        effect_id: The effect this belongs to.
        status: ``ok`` or ``error``.
        value: JSON data for ``ok``; the error's message for ``error``.
        error_type: Qualified class name, for ``error``.
        artifact_ref: Reference of the stored value, if the value is large.
    """

    effect_id: EffectId
    status: Literal["ok", "error"]
    value: JsonValue
    error_type: str | None = None
    artifact_ref: str | None = None


class ResultCache(Protocol):
    """Results on their way into the log, for the host that recovers the run when they do not arrive.

    Never the truth: what it loses, or never got, only leaves the crash window as wide as without it.
    """

    def keep(self, key: str, payload: dict[str, JsonValue]) -> None:
        """Let a result outlive this process, beside the commit; the first one of a key stays.

        Returns at once, never raises, and takes the payload as it is now.

        Args:
            key: Names one execution of one effect, see `result_key`.
            payload: Exactly what the log's entry of the result will hold.
        """

    async def find(self, key: str) -> dict[str, JsonValue] | None:
        """Return what was kept under `key`, or None; soon, and without an error, whatever is broken."""


def result_key(effect_id: EffectId, *, intent: int | None = None, attempt: int = 0) -> str:
    """Return the name of one execution of an effect: what a `ResultCache` keeps its result under.

    The id alone names every execution that there ever is at a position with the same arguments. An
    at-most-once effect executes once per intent, which is durable before: its seq distinguishes them,
    also when an operator or `reconcile` lets it execute anew. Of others (`intent` is None) all
    executions of one attempt are as good as each other; a new attempt wants a new result.
    """
    return f"{effect_id}:a{attempt}" if intent is None else f"{effect_id}:i{intent}"


class Journal(Protocol):
    """Results by effect id; narrows the crash window beside the log, which is the truth."""

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """Return what was recorded for this effect, or None."""

    async def record(self, result: EffectResult) -> None:
        """Keep a result; the first one wins, another for the same effect is ignored."""


async def _closed() -> None:
    raise AssertionError("the call of this effect is over")


@dataclass(slots=True)
class EffectCall:
    """A call of an effect verb.

    Attributes:
        verb: ``step``, ``tool``, ``llm``, ``cancel`` or ``status``.
        begin: Kind of the entry that says it was begun.
        end: Kind of the entry that holds its result.
        name: The step's, tool's or model's.
        arguments_json: Canonical JSON of name and arguments, hashed for comparison and for the effect's id.
        mode: What may happen when a crash leaves it without a result.
        execute: Function that executes the effect; its result is recorded.
        reconcile: Finds out whether an effect in doubt happened.
        counted: True if it counts against the execution budget of the run's tree.
        rides: True if it may execute before the steps of its graph that led to it are durable: an idempotent
            effect that no other run sees. A crash then has the steps decided again.
        checked: True if `execute` returns checked JSON data that nothing changes any more: it is recorded as it
            is.
    """

    verb: str
    begin: EntryKind
    end: EntryKind
    name: str
    arguments_json: str
    mode: EffectMode
    execute: Callable[[], Awaitable[Any]]
    reconcile: Callable[[str], Awaitable[Any]] | None = None
    counted: bool = False
    rides: bool = False
    checked: bool = False
    digest: str = field(init=False)
    position: str = field(init=False, default="")
    id: str = field(init=False, default="")
    """Set once the call has a position and is not a hit; the key too."""
    key: str = ""
    """Idempotency key for services outside; by default the effect's id."""
    intent: int = field(init=False, default=-1)
    """Seq of the entry that says it was begun; set with it."""
    receipt: dict[str, JsonValue] | None = None
    """Description of its request, for readers: recorded with the result, never compared."""
    session: str | None = None
    """The conversation that it belongs to, or None for the run's own. For traces."""
    is_inner: bool = False
    """True if that conversation is not the run's own: no reader of the run's answers is shown it."""
    asked_at: float | None = None
    """When a model was asked, by the monotonic clock, or None if none was. For metrics."""
    tool_call_id: str = ""
    """The model's id of the call that a tool answers; empty: no model asked for it. For traces."""
    tokens_left: int | None = None
    """Tokens that the tree's budget leaves for a counted call that executes now, or None for any number."""
    cap: int | None = None
    """The limit of the answer that the budget sets, recorded like the receipt, or None if it sets none."""
    payload: dict[str, JsonValue] = field(init=False, default_factory=dict)
    """Payload of its result, recorded now or earlier; empty until there is one."""
    on_recorded: Callable[[dict[str, JsonValue]], None] | None = None
    """Called with the result's payload when it is recorded: rows that are to be durable with it are added."""

    def __post_init__(self) -> None:
        self.digest = text_hash(self.arguments_json)

    @property
    def conversation(self) -> dict[str, JsonValue] | None:
        """The conversation of an inner call, as its live pieces name it; None if it is the run's own."""
        return {"session": self.session} if self.is_inner else None

    def close(self) -> None:
        """Drop its functions, which may refer to it: the memory would be left to the garbage collector."""
        self.execute, self.on_recorded = _closed, None

    def entry(self, **more: JsonValue) -> dict[str, JsonValue]:
        """Return the payload of an entry about this effect."""
        if self.tool_call_id:
            more["call"] = self.tool_call_id
        return {"effect": self.verb, "name": self.name, "hash": self.digest, "id": self.id, **more}

    def described(self) -> dict[str, JsonValue]:
        """Return what an entry shows of the request, by key."""
        fields: dict[str, JsonValue] = {}
        if self.receipt is not None:
            fields["receipt"] = {**self.receipt}
        if self.cap is not None:
            fields["max_tokens"] = self.cap
        return fields

    def result_key(self, attempt: int) -> str | None:
        """Return the key under which its result is kept beside the log, or None if repeating is cheaper."""
        if self.mode is EffectMode.AT_MOST_ONCE:
            return result_key(self.id, intent=self.intent)
        return result_key(self.id, attempt=attempt) if self.verb == "llm" else None
