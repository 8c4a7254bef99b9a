"""The state that all verbs of one execution share, and the start of each call of a verb."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from actors._kernel.agent.message import Message
from actors._kernel.agent.tools import ToolSpec
from actors._kernel.basics import Clock, Entropy
from actors._kernel.json import JsonValue, sized
from actors._kernel.runtime.commit import Outgoing
from actors._kernel.runtime.effects import EffectCall, ResultCache, args_hash, key_of_message
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, message_id_of_run
from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.artifacts import ArtifactStore
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import agent_scope
from actors._kernel.tracing import TRACE_PARENT
from actors._runtime.journal.run_log import RunLog, reading
from actors._runtime.replay.branch_scheduler import BranchScheduler
from actors._runtime.replay.branches import Branch
from actors._runtime.replay.failures import record_error
from actors._runtime.replay.history import CallEntries, History
from actors._runtime.telemetry.counters import Counters
from actors._runtime.telemetry.spans import ExecutionSpans
from actors._runtime.verbs.buffers import AnswerBuffer, SignalBuffer
from actors._runtime.verbs.middleware import Hooks
from actors.errors import CallInEffectError, ContractError, NonDeterminismError, OtherTenantError

if TYPE_CHECKING:
    from actors._kernel.stores.data import EmbeddingClient

Payload: TypeAlias = "dict[str, JsonValue]"
Entry: TypeAlias = "tuple[EntryKind, str, Payload]"
"""Entry to be recorded: kind, position, payload."""

POLL_S: Final = 0.05
"""Seconds between two checks of the lease by an effect that may not begin."""


@dataclass(slots=True)
class RunState:
    """The state of one execution of a run: its memory, its branches, its log writer."""

    row: RunRow
    history: History
    scheduler: BranchScheduler
    log: RunLog
    signals: SignalBuffer
    answers: AnswerBuffer
    clock: Clock
    entropy: Entropy
    may_act: Callable[[], bool]
    """False near the end of a lease that was not renewed: nothing outside is touched then."""
    hooks: Hooks
    """The agent's observers."""
    store: RunStore
    """Rows of all agents. What a run writes goes through `log`."""
    embedder: EmbeddingClient | None = None
    """The agent's embedder, or None if its memories are found by their words."""
    results: ResultCache | None = None
    """Cache of results that survives a crash before their commit."""
    recovering: bool = False
    """True while results of an execution that was broken off may be missing in the log: until this execution
    has recorded a result of its own. Later calls were never begun."""
    unrepeatable: int = 0
    """Number of at-most-once effects that were begun and have no durable result yet."""
    begun_calls: set[str] = field(default_factory=set)
    """Ids of the model's tool calls that may have acted, because their effects were executed."""
    refusals: dict[str, Exception] = field(default_factory=dict)
    """Calls that raise, by position, and record that: over budget, or waiting in a cycle."""
    session: str | None = None
    """The conversation that the run's first message names."""
    parent_agent: str | None = None
    """The agent that spawned the run."""
    mode: str | None = None
    """The mode of a session's run, or None if its agent is no session."""
    client_tools: tuple[ToolSpec, ...] = ()
    """Tools that came with the run's first messages: the client calls them."""
    model_call_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a model call is counted against the tree's budget: a commit begins one at most."""
    divergence: NonDeterminismError | None = None
    """Set once the code made another call than the log has; nothing executes then."""
    senders: dict[str, set[str]] = field(default_factory=dict)
    """Senders of the messages that the code was given, by the messages' ids."""
    spans: ExecutionSpans | None = None
    """The spans of this execution, or None if the host makes none."""
    counters: Counters = field(default_factory=Counters)
    """The counters of the host."""

    @property
    def run_id(self) -> RunId:
        """The run that executes."""
        return self.row.run_id

    @property
    def agent_id(self) -> AgentId:
        """The id of the run's agent."""
        return self.row.agent_id

    @property
    def sender(self) -> str:
        """The sender of the run's messages, as text."""
        return f"agent:{self.row.agent_id}"

    def message(
        self,
        message_id: str,
        target: AgentId | TopicId,
        payload: JsonValue,
        *,
        sender: str | None = None,
        is_question: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Message:
        """Return a message of this run, stamped as it leaves; its trace context is the same on replay."""
        carrier = {**metadata} if metadata else {}
        trace = self.row.trace if self.spans is None else self.spans.header
        if trace is not None:
            carrier[TRACE_PARENT] = trace
        return Message(
            message_id,
            target,
            payload,
            sender or self.sender,
            created_at=self.clock.now(),
            reply_to=self.run_id if is_question else None,
            correlation_id=message_id if is_question else None,
            causation_id=self.run_id,
            metadata=carrier,
        )

    def count_refusal(self, key: str) -> None:
        """Note that a question with this key was refused, and taken back."""
        counts = self.history.refusal_counts
        counts[key] = counts.get(key, 0) + 1

    def bequest(self) -> Payload:
        """Return the facts that the next generation has to know of this one."""
        facts: Payload = (
            {"refused": {**self.history.refusal_counts}} if self.history.refusal_counts else {}
        )
        if self.session is not None:
            facts["session"] = self.session
        if self.parent_agent is not None:
            facts["parent"] = self.parent_agent
        if self.mode is not None:
            facts["mode"] = self.mode
        return facts

    def give(self, message: Message) -> None:
        """Note that the code is given this message."""
        self.senders.setdefault(message.id, set()).add(message.sender or "")

    def key_of(self, message: Message | str, name: str) -> str:
        """Return the idempotency key of what is done by this name for a message, or one's id.

        Raises:
            ContractError: The code was given no message with this id, or two of different senders.
        """
        if not isinstance(message, str):
            sender, message_id = message.sender or "", message.id
        else:
            senders, message_id = self.senders.get(message, set()), message
            if len(senders) != 1:
                whose = "none" if not senders else f"{len(senders)} with different senders"
                msg = f"key {message!r} of {name!r} is the id of {whose} of the run's messages: give one"
                raise ContractError(msg)
            (sender,) = senders
        return key_of_message(self.agent_id, sender, message_id, name)

    async def until_may_act(self) -> None:
        """Return when the lease is good again; a lost one drops the run meanwhile."""
        while not self.may_act():  # noqa: ASYNC110 - the lease is renewed by a thread
            await asyncio.sleep(POLL_S)

    @property
    def generation_prefix(self) -> str:
        """The prefix of every position after `continue_as_new`, for example ``2:``; empty before."""
        return f"{self.history.generation}:" if self.history.generation else ""


async def tokens_left(run: RunState) -> int | None:
    """Return how many tokens the run's tree may still use, or None if its budget does not limit them."""
    supervision = run.row.supervision
    if supervision is None or supervision.execution_budget.max_tokens is None:
        return None
    return await reading(run.log, partial(run.store.reads.tokens_left, run.run_id))


executing: ContextVar[tuple[EffectCall, RunState]] = ContextVar("callboard_effect")
"""The effect that executes here, and its run."""


def enter_verb(run: RunState, verb: str) -> Branch:
    """Return the branch that calls a verb of the run. See `BranchScheduler.enter`.

    Raises:
        CallInEffectError: An effect of this run makes the call, in whatever task or thread. Its function is not
            called on a replay, which would not meet the verb at its position.
    """
    current = executing.get(None)
    if current is not None and current[1] is run:
        raise CallInEffectError(verb, current[0].verb, current[0].name)
    return run.scheduler.enter(verb)


def executing_effect(function_name: str) -> tuple[EffectCall, RunState]:
    """Return the effect that executes here, and its run; `function_name`: the function that an author called.

    Raises:
        ContractError: No effect is executing here.
    """
    try:
        return executing.get()
    except LookupError:
        msg = f"{function_name}() is only known inside a function called by ctx.step or a tool"
        raise ContractError(msg) from None


def artifact_store() -> ArtifactStore:
    """Return the artifacts of the agent whose step or tool executes now: large bytes, by their SHA-256.

    For use inside a function given to `ctx.step` or a tool, which records the reference and not the bytes.
    An artifact without a pin is kept for a day after it was stored or lost a pin last. All of them go
    when the agent is forgotten; no other agent has them.

    Raises:
        ContractError: No effect is executing here.
    """
    _, run = executing_effect("artifact_store")
    return run.store.data.artifacts.of(run.agent_id.tenant, agent_scope(run.agent_id))


class Call:
    """A call of a verb: its position in the run, and the log's entries for it.

    A verb makes one first: the call takes its position whatever becomes of its arguments. Then it checks
    these, and asks `meet` what is recorded. The branch goes on with that, after `in_order` if the entry's
    position among others matters; what is not recorded is done, after `begin` if that takes time, and recorded.

    Attributes:
        digest: Hash of the arguments; set by `meet`, like `entries`.
        entries: The entries that the log has for this call, or None if it has none.
    """

    branch: Branch
    run: RunState
    verb: str

    __slots__ = ("branch", "digest", "entries", "position", "run", "verb")

    def __init__(self, run: RunState, verb: str, *, beside: str | None = None) -> None:
        self.run, self.verb = run, verb
        self.branch = branch = enter_verb(run, verb)
        self.position: str = branch.take_position() if beside is None else beside
        self.digest: str
        self.entries: CallEntries | None

    def meet(
        self,
        kinds: tuple[EntryKind, ...],
        what: str,
        arguments: JsonValue,
        *,
        digest: str | None = None,
    ) -> RunLogEntry | None:
        """Return the entry that holds what such a call with these arguments gave, or None if it is to be done.

        Args:
            kinds: Kinds of the entries that record such a call.
            what: The call in words, for the error.
            arguments: JSON data that identifies the call, from which its digest is made.
            digest: Their hash, where it is at hand.

        Raises:
            NonDeterminismError: The log has another call here. That stops the whole run, whatever the
                code catches.
        """
        run = self.run
        self.digest = digest = args_hash(arguments) if digest is None else digest
        try:
            self.entries = entries = run.history.meet(self.position, kinds, what, digest)
        except NonDeterminismError as exc:
            run.divergence = exc
            run.scheduler.unwind(exc)
            raise
        return None if entries is None or entries.ends_void else entries.end

    @property
    def begin_entry(self) -> RunLogEntry | None:
        """The entry that says an execution before this one has begun the call."""
        return None if self.entries is None else self.entries.begin

    @property
    def message_id(self) -> str:
        """The id of the next message that is sent here."""
        run, position = self.run, self.position
        return message_id_of_run(run.run_id, position, run.history.next_number_at(position))

    def in_order(self, entry: RunLogEntry) -> Awaitable[None]:
        """Await that the branch is next to go on, with what is recorded."""
        return self.run.scheduler.resume_at(self.branch, entry.seq, self.verb)

    def begin(self) -> Awaitable[None]:
        """Await the moment when something new may begin; see `BranchScheduler.begin`."""
        return self.run.scheduler.begin(self.branch, self.verb)

    def entry(self, kind: EntryKind, payload: Payload) -> Entry:
        """Return an entry about this call, with the hash of its arguments."""
        payload["hash"] = self.digest
        return kind, self.position, payload

    def record(self, kind: EntryKind, payload: Payload) -> int:
        """Record an entry about this call and return its seq; it rides with the next flush."""
        payload["hash"] = self.digest
        return self.run.log.record(kind, self.position, payload)

    def result_payload(self, value: JsonValue) -> Payload:
        """Return the payload of the entry that keeps what the call returned."""
        return {"effect": self.verb, "hash": self.digest, "status": "ok", "value": value}

    def refusal(self, exc: Exception) -> Payload:
        """Return the payload of the entry that keeps why the call could not be done."""
        error = record_error(exc)
        return {"effect": self.verb, "hash": self.digest, "status": "error", "error": error}


def instant(run: RunState, verb: str, produce: Callable[[], JsonValue]) -> JsonValue:
    """Return a recorded value, or produce and record one."""
    call = Call(run, verb)
    entry = call.meet((EntryKind.EFFECT_RESULT,), verb, None, digest=_digest_of(verb))
    if entry is not None:
        return entry.payload.get("value")
    value = produce()
    run.log.record(EntryKind.EFFECT_RESULT, call.position, call.result_payload(value))
    return value


# The verbs without arguments are few and called often: each hash is computed once.
@cache
def _digest_of(verb: str) -> str:
    """Return the hash of the arguments of a verb that has none."""
    return args_hash([verb])


def post(run: RunState, verb: str, message: Message) -> None:
    """Let a message of the run leave with the next flush."""
    tell(run, verb, message.target, message)
    run.log.writes.outgoing.append(Outgoing(message, run.sender, message.target))


def tell(run: RunState, verb: str, target: AgentId | TopicId, message: Message | None) -> None:
    """Tell spans of what leaves with the next flush: a message, or a child without one."""
    if run.spans is not None:
        message_id, payload = (message.id, message.payload) if message is not None else (None, None)
        run.spans.point(
            verb, target.type, target=str(target), message_id=message_id, payload=payload
        )


def refuse_tenant(run: RunState, address: AgentId | TopicId) -> None:
    """Check that the agent or topic belongs to the run's tenant.

    Raises:
        OtherTenantError: It does not.
    """
    tenant = run.agent_id.tenant
    if address.tenant != tenant:
        kind = "topic" if isinstance(address, TopicId) else "agent"
        raise OtherTenantError(f"{kind} {address}", tenant)


def content_of(payload: Message | Any, what: str) -> tuple[JsonValue, int]:
    """Return what is to be sent, and its size."""
    return sized(payload.payload if isinstance(payload, Message) else payload, where=what)
