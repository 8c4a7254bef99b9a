"""Every error Callboard raises on purpose, in one hierarchy.

`ActorsError` is the root. Below it: `ContractError` (the caller must change something), `ConflictError`
(a race was lost, trying again is safe), `RunError` (an agent's run ended), `BrokerError` and
`PersistenceError` (a server could not do its part), `ModelError` (a language model gave no answer). Each
error keeps its facts as attributes, builds its message from them and survives pickling.

Control signals are not errors: they derive from `BaseException`, so that an author's
`except Exception` cannot swallow them.
"""

from __future__ import annotations

from math import isnan, nan
from typing import Any, ClassVar, Final, Literal, TypeAlias, dataclass_transform

from typing_extensions import override

__all__ = [
    "MAX_WAIT_S",
    "TRANSIENT_MODEL_ERRORS",
    "ActorsError",
    "AgentCrashError",
    "AlreadyRedrivenError",
    "BrokerError",
    "BudgetExhaustedError",
    "CallInEffectError",
    "CancellationError",
    "ConcurrentAppendError",
    "ConflictError",
    "ContractError",
    "DeadlineExceededError",
    "DecisionRefusedError",
    "EffectDidNotHappen",
    "EffectError",
    "EffectInDoubtError",
    "EffectOutsideScopeError",
    "Facts",
    "ForeignCancellationError",
    "HistoryLostError",
    "IllegalTransitionError",
    "InvalidEntryError",
    "InvalidNameError",
    "InvalidScheduleError",
    "InvalidTextError",
    "LeaseLostError",
    "MessageTooLargeError",
    "MiddlewareTermination",
    "ModelError",
    "ModelErrorKind",
    "NonDeterminismError",
    "NotSerializableError",
    "OtherTenantError",
    "OutOfOrderError",
    "OutputError",
    "PersistenceError",
    "RecordedError",
    "RegistrationError",
    "RetryAfter",
    "RunConflictError",
    "RunError",
    "RunFailedError",
    "RunSuspended",
    "RunSweptError",
    "ScheduleExistsError",
    "SpawnDenied",
    "StoreRefusedError",
    "StoreUnreachableError",
    "SuspensionSwallowedError",
    "TerminalError",
    "UnknownApprovalError",
    "UnknownRunError",
    "UnknownScheduleError",
    "UnservedError",
    "WaitCycleError",
]

MAX_WAIT_S: Final = 3_660 * 86_400.0
"""The longest time that anything waits for: ten years."""


class ActorsError(Exception):
    """Root of all errors of this project."""

    retryable: ClassVar[bool] = False
    """True if the same call may succeed later."""


@dataclass_transform(eq_default=False)
class Facts(Exception):  # noqa: N818 - what an error is made of
    """An error with facts: annotated fields are its parameters, attributes and `args`; `text` is its message.

    So it survives pickling, and a log rebuilds it. A subclass says what is not a template in `__str__`.
    """

    text: ClassVar[str]
    _fields: ClassVar[tuple[str, ...]] = ()

    @override
    def __init_subclass__(cls) -> None:
        own_fields = {} if "__init__" in vars(cls) else vars(cls).get("__annotations__", {})
        cls._fields += tuple(
            name for name, kind in own_fields.items() if "ClassVar" not in str(kind)
        )

    def __init__(self, *values: object, **keywords: object) -> None:
        arguments = dict(zip(self._fields, values, strict=False), **keywords)
        facts = {name: arguments.pop(name, getattr(self, name, ...)) for name in self._fields}
        if arguments or ... in facts.values() or len(values) > len(facts):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._fields)}")
        super().__init__(*facts.values())
        vars(self).update(facts)

    @override
    def __str__(self) -> str:
        return self.text.format_map(vars(self))


class ContractError(ActorsError):
    """The caller broke a rule; doing the same again fails again."""


class ConflictError(ActorsError):
    """A lost race: another writer was faster. Read again and retry."""

    retryable = True


class RunError(ActorsError):
    """An agent's run ended, or has to end, because of this."""


class BrokerError(ActorsError):
    """The message broker refused or could not be reached."""

    retryable = True


class PersistenceError(ActorsError):
    """The database refused or could not be reached."""

    retryable = True


ModelErrorKind: TypeAlias = Literal[
    "rate_limited",
    "overloaded",
    "timeout",
    "connection",
    "context_too_long",
    "refused",
    "invalid",
    "auth",
    "quota",
]
TRANSIENT_MODEL_ERRORS: Final[frozenset[ModelErrorKind]] = frozenset(
    ("rate_limited", "overloaded", "timeout", "connection")
)
"""Kinds of `ModelError` after which the same request may succeed later, or with another provider."""
_MODEL_REMEDIES: Final[dict[str, str]] = {
    "context_too_long": "send fewer or shorter messages, or use a model with a larger context",
    "refused": "the provider does not answer this request; another provider may",
    "invalid": "change the request, the options or the model's name",
    "auth": "check the provider's key, and that it may use this model",
    "quota": "the account's quota or credit is used up: raise it",
}


class ModelError(Facts, ActorsError):
    """A language model gave no answer. Adapters to providers raise it; effects record it with its facts.

    Attributes:
        kind: The kind of the failure. `retryable` is true for those in `TRANSIENT_MODEL_ERRORS`.
        retry_after: Seconds that the provider asks to wait, or None if it names no time.
        problem: The model's name and the provider's words.
    """

    kind: ModelErrorKind
    retry_after: float | None = None
    problem: str = ""

    @property
    @override
    def retryable(self) -> bool:  # type: ignore[override]  # of this error, not of its class
        """True if the same request may succeed later."""
        return self.kind in TRANSIENT_MODEL_ERRORS

    @override
    def __str__(self) -> str:
        remedy = _MODEL_REMEDIES.get(self.kind)
        if self.retry_after is not None:
            remedy = f"again after {self.retry_after:g} s"
        parts = (f"{self.kind}: {self.problem}" if self.problem else self.kind, remedy)
        return "; ".join(part for part in parts if part)


class StoreUnreachableError(PersistenceError):
    """The database is away, or refuses writes for lack of capacity; later it takes the same."""


class StoreRefusedError(Facts, PersistenceError):
    """The database, or its driver, refused what it was given; the same again is refused again.

    Attributes:
        doing: The purpose of the statement.
        problem: The text of the server or the driver.
        sqlstate: The server's code; None if the driver refused.
    """

    doing: str
    problem: str
    sqlstate: str | None = None

    @override
    def __str__(self) -> str:
        who = "the driver" if self.sqlstate is None else "PostgreSQL"
        code = "" if self.sqlstate is None else f" ({self.sqlstate})"
        return f"{self.doing}: {who} refused it{code}: {self.problem}"


class HistoryLostError(Facts, PersistenceError):
    """Turns that a session had are gone, or some of them; the others are not returned as if they were all."""

    retryable = False
    text = (
        "session {session!r} of {agent}: {problem}. `clear` it to start again without what was said"
    )
    agent: str
    session: str
    problem: str


class InvalidNameError(Facts, ContractError):
    """A type, tenant, key or topic does not fit the naming rules."""

    text = "{what} {value!r} is not valid: {rule}"
    what: str
    value: object
    rule: str


class InvalidTextError(Facts, ContractError):
    """A name, key or text cannot be kept: no database takes its characters, or it is too long."""

    text = "{what} {problem}"
    what: str
    problem: str


class InvalidEntryError(Facts, ContractError):
    """A log entry has an unknown kind or a payload that does not fit the kind."""

    text = "log entry of kind {kind!r}: {problem}"
    kind: str
    problem: str


class NotSerializableError(Facts, ContractError):
    """A value that must be recorded is not JSON data."""

    where: str
    type_name: str
    problem: str = ""

    @override
    def __str__(self) -> str:
        detail = f" ({self.problem})" if self.problem else ""
        return (
            f"{self.where}: a {self.type_name} cannot be recorded{detail}. Return JSON data "
            "(None, bool, int, float, str, list, dict with str keys), for example by model_dump(mode='json')."
        )


class MessageTooLargeError(Facts, ContractError):
    """A message exceeds the size limit."""

    text = (
        "{what} has {size_bytes} bytes as JSON, {limit_bytes} are the limit: put the data into "
        "a store of yours and send its key or URL"
    )
    what: str
    size_bytes: int
    limit_bytes: int


class UnknownRunError(Facts, ContractError):
    """No run has this id (in this tenant)."""

    text = "no run {run_id!r}: list the known ones with `callboard runs list`"
    run_id: str


class RunSweptError(Facts, ContractError):
    """The run ended so long ago that its result is not kept any more."""

    text = (
        "run {run_id} ended {status} and was swept: its result is gone; keep results longer "
        "with CALLBOARD_RETAIN_DAYS, or take them in time"
    )
    run_id: str
    status: str


class UnservedError(Facts, ContractError):
    """No live host serves agents of this type, so that a request would get no answer."""

    text = "no host serves {agent}: start a host that does, or correct the agent's type"
    agent: str


class UnknownApprovalError(Facts, ContractError):
    """A decision that no run waits for, or that was taken already."""

    text = "approval {approval_id!r}: {problem}; list the open ones with `callboard approvals list`"
    approval_id: str
    problem: str


class IllegalTransitionError(Facts, ContractError):
    """A run was asked for a change of status that the life cycle does not have."""

    text = "run {run_id} is {current} and cannot become {wanted}"
    run_id: str
    current: str
    wanted: str


class RegistrationError(ContractError):
    """An agent or agent type cannot be registered this way."""


class OtherTenantError(Facts, ContractError):
    """A reference would cross from one tenant to another."""

    text = "{what} is not of tenant {tenant!r}: nothing crosses tenants"
    what: str
    tenant: str


class WaitCycleError(Facts, ContractError):
    """Agents wait for each other in a cycle, so none of them can ever go on.

    Attributes:
        agents: Each waits for the next, the last one for the first.
    """

    agents: list[str]

    @override
    def __str__(self) -> str:
        cycle = " waits for ".join([*self.agents, *self.agents[:1]])
        return (
            f"{cycle}: none of them can go on. Use ctx.send where no answer is needed, or let one "
            "of them answer in ctx.receive while it waits."
        )


class InvalidScheduleError(ContractError):
    """A schedule's cron expression, time zone or instant makes no sense."""


class UnknownScheduleError(Facts, ContractError):
    """No schedule has this name."""

    text = "tenant {tenant!r} has no schedule {name!r}"
    name: str
    tenant: str


class ScheduleExistsError(Facts, ContractError):
    """A schedule of this name is there, and is another one.

    Attributes:
        name: The name of both schedules.
        differences: What differs, as ``part: there / wanted``.
    """

    name: str
    differences: list[str]

    @override
    def __str__(self) -> str:
        return (
            f"schedule {self.name!r} is there with other values ({'; '.join(self.differences)}): "
            "give it another name, or replace it"
        )


class EffectOutsideScopeError(Facts, ContractError):
    """A ctx call was made from a task that does not belong to the run."""

    text = (
        "ctx.{verb} was called from a task outside the run's scopes: its position would not be "
        "the same on replay. Start concurrent work with ctx.gather, ctx.select or ctx.scope "
        "(not asyncio.create_task, asyncio.gather or asyncio.wait_for)."
    )
    verb: str


class CallInEffectError(Facts, ContractError):
    """A ctx call was made inside the function of an effect, which a replay does not call."""

    text = (
        "ctx.{verb} was called inside {effect} {name!r}. A replay does not call that function, so it makes no "
        "calls of ctx. Call ctx.{verb} before and give its result to the function, or call it after, with "
        "what the function has returned."
    )
    verb: str
    effect: str
    name: str


class ForeignCancellationError(Facts, ContractError):
    """A ctx call was cancelled by something that replay cannot see (asyncio.timeout, Task.cancel)."""

    text = (
        "ctx.{verb} was cancelled from outside the runtime, as asyncio.timeout does; replay "
        "cannot repeat that. Use ctx.step(..., timeout=...), ctx.receive(timeout=...), or "
        "ctx.select with ctx.sleep as one branch."
    )
    verb: str


class SuspensionSwallowedError(Facts, ContractError):
    """Agent code caught the suspension signal and went on."""

    text = (
        "agent {agent} swallowed the suspension of its run and {did}. Let BaseException pass: "
        "write `except Exception`, not a bare `except:`."
    )
    agent: str
    did: str


class NonDeterminismError(Facts, ContractError):
    """The agent's code asked for something else than what its log says it did."""

    text = (
        "at position {position} the log has {expected}, the code now asks for {found}. Nothing "
        "was executed. Guard changed code with ctx.patched(...), or let runs of the old version"
        " finish first."
    )
    parked_as = "non_determinism"
    position: str
    expected: str
    found: str


class ConcurrentAppendError(Facts, ConflictError):
    """The log's tail is not where the writer thought."""

    text = "run {run_id}: expected the log to end at {expected}, it ends at {actual}"
    run_id: str
    expected: int
    actual: int


class OutOfOrderError(ConcurrentAppendError):
    """A queued run may not begin: something older of its sender waits for its agent."""

    text = "run {run_id} may not begin: something older of its sender waits for its agent"


class LeaseLostError(Facts, ConflictError):
    """The shard belongs to another host now; stop acting for its agents."""

    text = "shard {shard} is no longer owned by {owner} at epoch {epoch}"
    shard: str
    owner: str
    epoch: int


class RunConflictError(Facts, ConflictError):
    """`submit(on_conflict="reject")` found the agent busy."""

    text = "agent {agent} is busy with run {run_id}"
    agent: str
    run_id: str


class DecisionRefusedError(Facts, ConflictError):
    """A run is not (any more) at what an operator decided, or that was decided otherwise.

    Attributes:
        position: Position of the effect, or None if the decision was to start the run again.
        problem: What the run is at instead.
    """

    run_id: str
    position: str | None
    problem: str

    @override
    def __str__(self) -> str:
        what = f"run {self.run_id} cannot start again"
        if self.position is not None:
            what = f"nothing is in doubt at position {self.position!r} of run {self.run_id}"
        return f"{what}: {self.problem}; see `callboard runs show {self.run_id}`"


class AlreadyRedrivenError(Facts, ConflictError):
    """Messages of a dead run were sent to its agent again already, each by itself.

    Attributes:
        run_id: The dead run.
        given: Numbers of its dead letters that were redriven.
        left: Numbers of those that were not.
    """

    run_id: str
    given: tuple[int, ...]
    left: tuple[int, ...]

    @override
    def __str__(self) -> str:
        letters = ", ".join(map(str, self.given))
        remaining = " ".join(map(str, self.left))
        return (
            f"run {self.run_id} is not redriven: its dead letters {letters} were sent again as new "
            "messages, so its work would be done twice"
            + (f"; for the others: callboard dlq redrive {remaining}" if remaining else "")
        )


class TerminalError(RunError):
    """Raised by authors: this run cannot succeed, do not retry it."""


class RetryAfter(RunError):  # noqa: N818 - the field's name for it, and authors raise it as a request
    """Raised by authors: try again, but not before `delay_s` seconds have passed.

    Raised from inside an at-most-once effect it also states that the effect did NOT happen. A delay
    below 0 is 0, one of more than ten years is ten years; what is no number raises `ContractError`.
    """

    delay_s: float
    reason: str

    retryable = True

    def __init__(self, delay_s: float, reason: str = "") -> None:
        try:
            delay_s = min(max(delay_s, 0.0), MAX_WAIT_S)
        except TypeError:
            delay_s = nan
        if isnan(delay_s):
            raise ContractError("RetryAfter: its delay is no number; give seconds")
        super().__init__(delay_s, reason)
        self.delay_s, self.reason = delay_s, reason

    @override
    def __str__(self) -> str:
        return f"retry after {self.delay_s:g} s" + (f": {self.reason}" if self.reason else "")


class EffectDidNotHappen(RunError):  # noqa: N818 - a statement, raised by reconcile functions
    """Raised by a `reconcile` function: the effect in doubt did not happen, execute it now."""


class AgentCrashError(RunError):
    """The agent's code raised something unexpected; the run is retried by its policy."""

    retryable = True


class DeadlineExceededError(Facts, RunError):
    """The run, or a step with a timeout, took longer than it may."""

    retryable = True

    text = "{what} did not finish within {timeout_s:g} s"
    what: str
    timeout_s: float


class CancellationError(Facts, RunError):
    """The run was asked to stop."""

    reason: str = ""

    @override
    def __str__(self) -> str:
        return "the run was cancelled" + (f": {self.reason}" if self.reason else "")


class MiddlewareTermination(RunError):  # noqa: N818 - the sources' name
    """A guardrail stopped the run on purpose: messages count as handled, no retry."""


class BudgetExhaustedError(RunError):
    """A budget of tokens, money, model calls or spawns is used up: messages count as handled, no retry."""


class OutputError(Facts, RunError):
    """A model's output does not fit the type that `ctx.chat` was given, after two corrections.

    Attributes:
        problem: Names the fields that do not fit.
        answer: The text of the last answer.
    """

    text = (
        "the model's output does not fit: {problem}. Simplify the type, or say in the agent's"
        " instructions what is expected"
    )
    problem: str
    answer: str


class EffectError(Facts, RunError):
    """A recorded effect failed; on replay this carries the original type and message.

    Attributes:
        error_type: Qualified class name of the original exception.
        message: Its text.
    """

    retryable = True

    text = "{error_type}: {message}"
    error_type: str
    message: str


class RecordedError(EffectError):
    """An effect failed with an error that its class does not make again: these are the facts of it.

    Its class has other constructor arguments than those that it keeps, or attributes that are not JSON data.

    Attributes:
        arguments: Its constructor arguments; empty if they are not JSON data.
        attributes: Those of its attributes that are JSON data, for example ``status``.
    """

    arguments: list[Any]
    attributes: dict[str, Any]


class EffectInDoubtError(Facts, RunError):
    """An at-most-once effect was begun and its outcome is unknown.

    Uncaught it parks the run until an operator decides:
    `callboard runs resolve RUN POSITION --value JSON | --retry | --fail`.
    """

    text = (
        "at-most-once effect {name!r} of run {run_id} at position {position} was begun before a"
        " crash and has no recorded result: it may or may not have happened. Decide with: "
        "callboard runs resolve {run_id} {position} --value JSON | --retry | --fail"
    )
    run_id: str
    position: str
    name: str


class RunFailedError(Facts, RunError):
    """`Runtime.result` waited for a run that failed or was cancelled."""

    text = "run {run_id} ended {status}: {message}"
    run_id: str
    status: str
    message: str


class SpawnDenied(Facts, BudgetExhaustedError):  # noqa: N818 - the sources' name
    """The tree's spawn budget is used up.

    Attributes:
        parent: The run that wanted to spawn.
        limit: The limit of the root's budget, with its number.
    """

    text = "run {parent} may not spawn: its tree has used up its budget ({limit})"
    parent: str
    limit: str


class RunSuspended(BaseException):
    """The run is being taken out of memory; it will be replayed when something wakes it.

    If you see this in an `except BaseException:` block, re-raise it. No ctx call works any more.
    """

    @override
    def __str__(self) -> str:
        return (
            "this run is being suspended and evicted from memory now; it continues by replay when woken. "
            "Re-raise this signal: agent code must not catch it."
        )
