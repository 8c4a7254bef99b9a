"""Every error Callboard raises on purpose, in one hierarchy.

`ActorsError` is the root. Below it: `ContractError` (the caller must change something), `ConflictError`
(a race was lost, trying again is safe), `RunError` (an agent's run ended), `BrokerError` and
`PersistenceError` (a server could not do its part). Each error keeps its facts as attributes, builds
its message from them and survives pickling.

Control signals are not errors: they derive from `BaseException`, so that an author's
`except Exception` cannot swallow them.
"""

from __future__ import annotations

from math import isnan, nan
from typing import ClassVar, Final

from typing_extensions import override

MAX_WAIT_S: Final = 3_660 * 86_400.0
"""The longest time that anything waits for: ten years."""


class ActorsError(Exception):
    """Root of all errors of this project."""

    retryable: ClassVar[bool] = False
    """Whether doing the same thing again later may succeed."""


class ContractError(ActorsError):
    """The caller broke a rule; doing the same again fails again."""


class ConflictError(ActorsError):
    """Somebody else was faster; read again and retry."""

    retryable = True


class RunError(ActorsError):
    """An agent's run ended, or has to end, because of this."""


class BrokerError(ActorsError):
    """The message broker refused or could not be reached."""

    retryable = True


class PersistenceError(ActorsError):
    """The database refused or could not be reached."""

    retryable = True


class StoreUnreachableError(PersistenceError):
    """The database is away, or takes nothing for want of room; later it takes the same."""


class StoreRefusedError(PersistenceError):
    """The database, or its driver, refused what it was given; the same again is refused again.

    Attributes:
        doing: What the statement was for.
        problem: What was said.
        sqlstate: The server's code; None where it was the driver that refused.
    """

    def __init__(self, doing: str, problem: str, sqlstate: str | None = None) -> None:
        super().__init__(doing, problem, sqlstate)
        self.doing, self.problem, self.sqlstate = doing, problem, sqlstate

    @override
    def __str__(self) -> str:
        who = "the driver" if self.sqlstate is None else "PostgreSQL"
        code = "" if self.sqlstate is None else f" ({self.sqlstate})"
        return f"{self.doing}: {who} refused it{code}: {self.problem}"


# --- contract -----------------------------------------------------------------------------------


class InvalidNameError(ContractError):
    """A type, tenant, key or topic does not fit the naming rules."""

    def __init__(self, what: str, value: object, rule: str) -> None:
        super().__init__(what, value, rule)
        self.what, self.value, self.rule = what, value, rule

    @override
    def __str__(self) -> str:
        return f"{self.what} {self.value!r} is not valid: {self.rule}"


class InvalidTextError(ContractError):
    """A name, key or text cannot be kept: no database takes its characters, or it is too long."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    @override
    def __str__(self) -> str:
        return f"{self.what} {self.problem}"


class InvalidEntryError(ContractError):
    """A log entry has an unknown kind or a payload that does not fit the kind."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(kind, problem)
        self.kind, self.problem = kind, problem

    @override
    def __str__(self) -> str:
        return f"log entry of kind {self.kind!r}: {self.problem}"


class NotSerializableError(ContractError):
    """A value that must be recorded is not JSON data."""

    def __init__(self, where: str, type_name: str, problem: str = "") -> None:
        super().__init__(where, type_name, problem)
        self.where, self.type_name, self.problem = where, type_name, problem

    @override
    def __str__(self) -> str:
        detail = f" ({self.problem})" if self.problem else ""
        return (
            f"{self.where}: a {self.type_name} cannot be recorded{detail}. Return JSON data "
            "(None, bool, int, float, str, list, dict with str keys), for example by model_dump(mode='json')."
        )


class MessageTooLargeError(ContractError):
    """What somebody wants to send is larger than a message may be."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)
        self.what, self.size_bytes, self.limit_bytes = what, size_bytes, limit_bytes

    @override
    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size_bytes} bytes as JSON, {self.limit_bytes} are the limit: put the "
            "data into a store of yours and send its key or URL"
        )


class UnknownRunError(ContractError):
    """No run has this id (in this tenant)."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    @override
    def __str__(self) -> str:
        return f"no run {self.run_id!r}: list the known ones with `callboard runs list`"


class RunSweptError(ContractError):
    """The run ended so long ago that its result is not kept any more."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status)
        self.run_id, self.status = run_id, status

    @override
    def __str__(self) -> str:
        return (
            f"run {self.run_id} ended {self.status} and was swept: its result is gone; keep results "
            "longer with CALLBOARD_RETAIN_DAYS, or take them in time"
        )


class UnservedError(ContractError):
    """No host that lives serves agents of this type, so that nobody would answer."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self.agent = agent

    @override
    def __str__(self) -> str:
        return f"nobody serves {self.agent}: start a host that does, or correct the agent's type"


class UnknownApprovalError(ContractError):
    """Nobody waits for this decision, or it was taken already."""

    def __init__(self, approval_id: str, problem: str) -> None:
        super().__init__(approval_id, problem)
        self.approval_id, self.problem = approval_id, problem

    @override
    def __str__(self) -> str:
        return (
            f"approval {self.approval_id!r}: {self.problem}; list the open ones with "
            "`callboard approvals list`"
        )


class IllegalTransitionError(ContractError):
    """A run was asked for a change of status that the life cycle does not have."""

    def __init__(self, run_id: str, current: str, wanted: str) -> None:
        super().__init__(run_id, current, wanted)
        self.run_id, self.current, self.wanted = run_id, current, wanted

    @override
    def __str__(self) -> str:
        return f"run {self.run_id} is {self.current} and cannot become {self.wanted}"


class RegistrationError(ContractError):
    """An agent or agent type cannot be registered this way."""


class OtherTenantError(ContractError):
    """Something of one tenant was to reach another."""

    def __init__(self, what: str, tenant: str) -> None:
        super().__init__(what, tenant)
        self.what, self.tenant = what, tenant

    @override
    def __str__(self) -> str:
        return f"{self.what} is not of tenant {self.tenant!r}: nothing crosses tenants"


class WaitCycleError(ContractError):
    """Agents wait for each other in a circle, so none of them can ever go on.

    Attributes:
        agents: Each waits for the next, the last one for the first.
    """

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.agents = agents

    @override
    def __str__(self) -> str:
        circle = " waits for ".join([*self.agents, *self.agents[:1]])
        return (
            f"{circle}: none of them can go on. Use ctx.send where no answer is needed, or let one "
            "of them answer in ctx.receive while it waits."
        )


class InvalidScheduleError(ContractError):
    """A schedule's cron expression, time zone or instant makes no sense."""


class UnknownScheduleError(ContractError):
    """There is no schedule of this name."""

    def __init__(self, name: str, tenant: str) -> None:
        super().__init__(name, tenant)
        self.name, self.tenant = name, tenant

    @override
    def __str__(self) -> str:
        return f"tenant {self.tenant!r} has no schedule {self.name!r}"


class ScheduleExistsError(ContractError):
    """A schedule of this name is there, and is another one.

    Attributes:
        name: Of both.
        differences: What differs, as ``part: there / wanted``.
    """

    def __init__(self, name: str, differences: list[str]) -> None:
        super().__init__(name, differences)
        self.name, self.differences = name, differences

    @override
    def __str__(self) -> str:
        return (
            f"schedule {self.name!r} is there with other values ({'; '.join(self.differences)}): "
            "give it another name, or replace it"
        )


class EffectOutsideScopeError(ContractError):
    """A ctx call was made from a task that does not belong to the run."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        self.verb = verb

    @override
    def __str__(self) -> str:
        return (
            f"ctx.{self.verb} was called from a task outside the run's scopes: its position would not "
            "be the same on replay. Start concurrent work with ctx.gather, ctx.select or ctx.scope "
            "(not asyncio.create_task, asyncio.gather or asyncio.wait_for)."
        )


class ForeignCancellationError(ContractError):
    """A ctx call was cancelled by something that replay cannot see (asyncio.timeout, Task.cancel)."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        self.verb = verb

    @override
    def __str__(self) -> str:
        return (
            f"ctx.{self.verb} was cancelled from outside the runtime, as asyncio.timeout does; replay "
            "cannot repeat that. Use ctx.step(..., timeout=...), ctx.receive(timeout=...), or "
            "ctx.select with ctx.sleep as one branch."
        )


class SuspensionSwallowedError(ContractError):
    """Agent code caught the suspension signal and went on."""

    def __init__(self, agent: str, did: str) -> None:
        super().__init__(agent, did)
        self.agent, self.did = agent, did

    @override
    def __str__(self) -> str:
        return (
            f"agent {self.agent} swallowed the suspension of its run and {self.did}. "
            "Let BaseException pass: write `except Exception`, not a bare `except:`."
        )


class NonDeterminismError(ContractError):
    """The agent's code asked for something else than what its log says it did."""

    def __init__(self, position: str, expected: str, found: str) -> None:
        super().__init__(position, expected, found)
        self.position, self.expected, self.found = position, expected, found

    @override
    def __str__(self) -> str:
        return (
            f"at position {self.position} the log has {self.expected}, the code now asks for "
            f"{self.found}. Nothing was executed. Guard changed code with ctx.patched(...), or let "
            "runs of the old version finish first."
        )


# --- conflict -----------------------------------------------------------------------------------


class ConcurrentAppendError(ConflictError):
    """The log's tail is not where the writer thought."""

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        super().__init__(run_id, expected, actual)
        self.run_id, self.expected, self.actual = run_id, expected, actual

    @override
    def __str__(self) -> str:
        return f"run {self.run_id}: expected the log to end at {self.expected}, it ends at {self.actual}"


class LeaseLostError(ConflictError):
    """The shard belongs to somebody else now; stop acting for its agents."""

    def __init__(self, shard: str, owner: str, epoch: int) -> None:
        super().__init__(shard, owner, epoch)
        self.shard, self.owner, self.epoch = shard, owner, epoch

    @override
    def __str__(self) -> str:
        return f"shard {self.shard} is no longer owned by {self.owner} at epoch {self.epoch}"


class RunConflictError(ConflictError):
    """`submit(on_conflict="reject")` found the agent busy."""

    def __init__(self, agent: str, run_id: str) -> None:
        super().__init__(agent, run_id)
        self.agent, self.run_id = agent, run_id

    @override
    def __str__(self) -> str:
        return f"agent {self.agent} is busy with run {self.run_id}"


class DecisionRefusedError(ConflictError):
    """A run is not (any more) at what an operator decided, or that was decided otherwise.

    Attributes:
        position: Of the effect; None: the run was to start anew.
        problem: What the run is at instead.
    """

    def __init__(self, run_id: str, position: str | None, problem: str) -> None:
        super().__init__(run_id, position, problem)
        self.run_id, self.position, self.problem = run_id, position, problem

    @override
    def __str__(self) -> str:
        what = f"run {self.run_id} cannot start anew"
        if self.position is not None:
            what = f"nothing is in doubt at position {self.position!r} of run {self.run_id}"
        return f"{what}: {self.problem}; see `callboard runs show {self.run_id}`"


class AlreadyRedrivenError(ConflictError):
    """Messages of a dead run were given back to its agent already, each by itself.

    Attributes:
        run_id: The dead run.
        given: Numbers of its dead letters that were given back.
        left: Numbers of those that were not.
    """

    def __init__(self, run_id: str, given: tuple[int, ...], left: tuple[int, ...]) -> None:
        super().__init__(run_id, given, left)
        self.run_id, self.given, self.left = run_id, given, left

    @override
    def __str__(self) -> str:
        letters = ", ".join(map(str, self.given))
        rest = " ".join(map(str, self.left))
        return (
            f"run {self.run_id} is not redriven: its dead letters {letters} were given back as new "
            "messages, so its work would be done twice"
            + (f"; for the others: callboard dlq redrive {rest}" if rest else "")
        )


# --- run ----------------------------------------------------------------------------------------


class TerminalError(RunError):
    """Raised by authors: this run cannot succeed, do not retry it."""


class RetryAfter(RunError):  # noqa: N818 - the field's name for it, and authors raise it as a request
    """Raised by authors: try again, but not before `delay_s` seconds have passed.

    Raised from inside an at-most-once effect it also states that the effect did NOT happen. A delay
    below 0 is 0, one of more than ten years is ten years; what is no number raises `ContractError`.
    """

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


class DeadlineExceededError(RunError):
    """The run, or a step with a timeout, took longer than it may."""

    retryable = True

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(what, timeout_s)
        self.what, self.timeout_s = what, timeout_s

    @override
    def __str__(self) -> str:
        return f"{self.what} did not finish within {self.timeout_s:g} s"


class CancellationError(RunError):
    """The run was asked to stop."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    @override
    def __str__(self) -> str:
        return "the run was cancelled" + (f": {self.reason}" if self.reason else "")


class MiddlewareTermination(RunError):  # noqa: N818 - the sources' name
    """A guardrail stopped the run on purpose: messages count as handled, no retry."""


class BudgetExhaustedError(RunError):
    """A token, money, turn or spawn budget is used up: messages count as handled, no retry."""


class EffectError(RunError):
    """A recorded effect failed; on replay this carries the original type and message.

    Attributes:
        error_type: Qualified class name of the original exception.
        message: Its text.
    """

    retryable = True

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(error_type, message)
        self.error_type, self.message = error_type, message

    @override
    def __str__(self) -> str:
        return f"{self.error_type}: {self.message}"


class EffectInDoubtError(RunError):
    """An at-most-once effect was begun and nobody knows whether it happened.

    Uncaught it parks the run until an operator decides:
    `callboard runs resolve RUN POSITION --value JSON | --retry | --fail`.
    """

    def __init__(self, run_id: str, position: str, name: str) -> None:
        super().__init__(run_id, position, name)
        self.run_id, self.position, self.name = run_id, position, name

    @override
    def __str__(self) -> str:
        return (
            f"at-most-once effect {self.name!r} of run {self.run_id} at position {self.position} was "
            "begun before a crash and has no recorded result: it may or may not have happened. "
            f"Decide with: callboard runs resolve {self.run_id} {self.position} --value JSON | --retry | --fail"
        )


class RunFailedError(RunError):
    """`Runtime.result` waited for a run that failed or was cancelled."""

    def __init__(self, run_id: str, status: str, message: str) -> None:
        super().__init__(run_id, status, message)
        self.run_id, self.status, self.message = run_id, status, message

    @override
    def __str__(self) -> str:
        return f"run {self.run_id} ended {self.status}: {self.message}"


class SpawnDenied(BudgetExhaustedError):  # noqa: N818 - the sources' name
    """The tree's spawn budget has no place left.

    Attributes:
        parent: The run that wanted to spawn.
        limit: Which limit of the root's budget, with its number.
    """

    def __init__(self, parent: str, limit: str) -> None:
        super().__init__(parent, limit)
        self.parent, self.limit = parent, limit

    @override
    def __str__(self) -> str:
        return f"run {self.parent} may not spawn: its tree has used up its budget ({self.limit})"


# --- control signals: BaseException on purpose ---------------------------------------------------


class RunSuspended(BaseException):
    """The run is being taken out of memory; it will be replayed when something wakes it.

    If you see this in an `except BaseException:` block, re-raise it. No ctx call works any more.
    """

    @override
    def __str__(self) -> str:
        return (
            "this run is being suspended and leaves memory now; it continues by replay when woken. "
            "Re-raise this signal: agent code must not catch it."
        )
