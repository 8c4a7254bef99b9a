"""RunContext: what an agent's author calls. Every verb is recorded, or says why it need not be."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, overload

from actors.errors import ContractError, DeadlineExceededError
from actors.kernel.agent.llm import LLMResponse
from actors.kernel.agent.tools import InvocationResult, ToolCall
from actors.kernel.json import canonical_json, recordable
from actors.kernel.runtime.effects import EffectMode, args_hash
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.supervisor import RunHandle
from actors.kernel.seconds import check_s, instant_of
from actors.kernel.text import check_name_of
from actors.runtime.agent_state import AgentState
from actors.runtime.approving import approval
from actors.runtime.continuation import ContinueAsNew
from actors.runtime.emitting import Emitting
from actors.runtime.following import Following
from actors.runtime.history import PATCH
from actors.runtime.journaling import EffectCall, Effects, bounded, idempotency_key
from actors.runtime.model_calls import Pieces, chat_messages, complete, has_limits
from actors.runtime.scopes import Scope, Scopes
from actors.runtime.spawning import Spawning
from actors.runtime.talk import Talk
from actors.runtime.threads import in_thread, refuse_coroutines
from actors.runtime.tool_invoker import denied
from actors.runtime.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from actors.kernel.agent.agent import RunMeta
    from actors.kernel.agent.llm import GenerationOptions, LLMClient
    from actors.kernel.agent.message import ChatMessage, Message
    from actors.kernel.agent.supervision import Supervision
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.communication import Approval, AskOutcome, RunStatusSummary
    from actors.kernel.runtime.follow_graph import FollowMode
    from actors.kernel.runtime.ids import AgentId, RunId, TopicId
    from actors.kernel.runtime.scheduler import RetryPolicy
    from actors.kernel.runtime.supervisor import RunResult
    from actors.runtime.environment import Environment
    from actors.runtime.groups import Selected
    from actors.runtime.recorder import Recorder
    from actors.runtime.spawning import Child
    from actors.runtime.tool_invoker import Toolkit
    from actors.runtime.waits import Mail

T = TypeVar("T")

EffectWord: TypeAlias = 'Literal["idempotent", "at_most_once"]'
Reconcile: TypeAlias = "Callable[[str], Awaitable[Any]]"
"""Called with the id of an effect in doubt; returns its value, or raises `EffectDidNotHappen`."""


class RunContext:
    """The toolkit and notebook of one run. Built anew for every execution.

    Attributes:
        meta: Facts about the run.
        state: The agent's durable values: ``get``, ``set``, ``clear``.
    """

    def __init__(
        self,
        recorder: Recorder,
        meta: RunMeta,
        *,
        env: Environment,
        mail: Mail,
        toolkit: Toolkit,
        model: LLMClient | None,
    ) -> None:
        self.meta = meta
        self.state = AgentState(recorder, env.store)
        self._run = recorder
        self._effects = Effects(recorder)
        self._scopes = Scopes(recorder)
        self._waits = Waits(recorder, mail)
        self._spawning = Spawning(recorder)
        self._talk = Talk(
            recorder, self._waits, self._effects, store=env.store, on_cancel=env.on_cancel
        )
        self._following = Following(recorder, self._effects, env.foreign_topics)
        self._toolkit = toolkit
        self._secrets = env.secrets
        self._model = model
        self._on_delta = env.on_delta
        self._emitting = Emitting(recorder, env.on_delta)
        self._patches: dict[str, bool] = {}

    # --- facts ----------------------------------------------------------------------------------

    @property
    def run_id(self) -> RunId:
        """The run this context belongs to."""
        return self.meta.run_id

    @property
    def agent_id(self) -> AgentId:
        """The agent that runs."""
        return self.meta.agent_id

    @property
    def tenant_id(self) -> str:
        """The tenant of the run."""
        return self.meta.agent_id.tenant

    @property
    def waits(self) -> Waits:
        """For the worker: what this run waits for."""
        return self._waits

    def check(self) -> None:
        """Return if the run may go on. Not recorded.

        Raises:
            CancellationError: The run was cancelled.
            DeadlineExceededError: The run's deadline has passed.
        """
        self.meta.cancellation.check()
        deadline = self.meta.deadline
        if deadline is not None and self._run.clock.now() > deadline:
            raise DeadlineExceededError(f"run {self.run_id}", 0.0)

    # --- effects --------------------------------------------------------------------------------

    @overload
    async def step(
        self, name: str, fn: Callable[..., Awaitable[T]], *args: Any,
        retry: RetryPolicy | None = None, timeout: float | None = None,
        effect: EffectWord = "idempotent", reconcile: Reconcile | None = None,
        thread: bool = False,
    ) -> T: ...  # fmt: skip

    @overload
    async def step(
        self, name: str, fn: Callable[..., T], *args: Any,
        retry: RetryPolicy | None = None, timeout: float | None = None,
        effect: EffectWord = "idempotent", reconcile: Reconcile | None = None,
        thread: bool = False,
    ) -> T: ...  # fmt: skip

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        effect: EffectWord = "idempotent",
        reconcile: Reconcile | None = None,
        thread: bool = False,
    ) -> Any:
        """Return what ``fn(*args)`` returned, executing it only if the log has no result yet.

        Durable before it returns. Live and on replay the same JSON value comes back.

        Args:
            name: Of the step; part of what replay compares.
            fn: Coroutine function or plain function. What it returns has to be JSON data.
            args: JSON data; compared on replay. A `Secret` stands for its value, which `fn` gets and
                nothing records.
            retry: Tries inside this one effect; only the last outcome is recorded.
            timeout: Seconds one try may take.
            effect: ``"idempotent"`` (a crash may repeat it, with the same `idempotency_key()`) or
                ``"at_most_once"`` (a crash leaves it in doubt; it is never repeated).
            reconcile: For at-most-once: called with the effect id when in doubt; returns the value
                if the effect happened, raises `EffectDidNotHappen` if not.
            thread: Call `fn`, a plain function, in a thread of its own: it may block, and other agents
                go on. Cancelled or out of time, the thread goes on and what it returns is dropped.

        Raises:
            EffectInDoubtError: See `reconcile`; uncaught, the run is parked for an operator.
            NonDeterminismError: The log has another call at this position.
            Exception: What `fn` raised, as rebuilt from its record.
        """
        mode = EffectMode(effect)
        if mode is EffectMode.AT_MOST_ONCE and retry is not None:
            msg = f"step {name!r}: retry= would execute an at-most-once effect twice"
            raise ContractError(msg)
        if timeout is not None and timeout != inf:
            check_s(f"timeout of ctx.step {name!r}", timeout)
        what = f"step {name!r}"
        if thread:
            refuse_coroutines(fn, what)
            fn = functools.partial(in_thread, fn)
        sealed = self._secrets.sealed_args(args)
        words: list[JsonValue] = [name, list(args) if sealed is None else [*sealed.shown.values()]]
        limited = functools.partial(
            bounded, fn, what=what, timeout_s=timeout, retry=retry,
            chance=self._run.entropy.random,
        )  # fmt: skip
        if sealed is None:
            execute = limited(args)
        else:
            execute = sealed.execute(lambda opened: limited(tuple(opened.values()))(), what=what)
        call = EffectCall(
            "step", EntryKind.EFFECT_INTENT, EntryKind.EFFECT_RESULT, name,
            canonical_json(words), mode, execute, reconcile,
        )  # fmt: skip
        return await self._effects.perform(call)

    async def tool(self, name: str, /, **arguments: Any) -> InvocationResult:
        """Call one of the agent's declared tools; at most once unless the tool is idempotent.

        A tool that fails, is not declared or is denied gives a result that says so. A risky one waits
        for a person first, who agrees to one call with exactly these arguments: see `ApprovalPolicy`. A
        `Secret` as an argument stands for its value, which the tool gets and nothing records.
        """
        kit = self._toolkit
        tool = kit.find(name)
        sealed = self._secrets.sealed(arguments)
        shown = arguments if sealed is None else sealed.shown
        words: list[JsonValue] = [name, shown]
        if tool is not None and kit.policy.asks_for(tool):
            asked = {"risk": tool.risk.value, "arguments": shown}
            decision = await self.approval(f"tool {name}", asked, timeout=kit.policy.timeout_s)
            if not decision.is_approved:
                return denied(name, decision)

        async def invoke(values: dict[str, Any]) -> Any:
            key = idempotency_key()
            call = ToolCall(id=key, name=name, arguments=values)
            result = await kit.invoker.invoke(call, tools=kit.tools, idempotency_key=key)
            return result.model_dump(mode="json", exclude_none=True)

        execute: Callable[[], Awaitable[Any]] = functools.partial(invoke, arguments)
        if sealed is not None:
            execute = sealed.execute(invoke, what=f"tool {name!r}")
        call = EffectCall(
            "tool", EntryKind.TOOL_CALLED, EntryKind.TOOL_RESULT, name, canonical_json(words),
            tool.mode if tool is not None else EffectMode.IDEMPOTENT, execute,
        )  # fmt: skip
        return InvocationResult.model_validate(await self._effects.perform(call))

    async def llm(
        self,
        messages: Sequence[ChatMessage] | str,
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Return the model's answer; a replay never asks, and never bills, again.

        Deltas are live events while the call runs; the log keeps one ``llm.call`` with the text.

        Raises:
            RuntimeError: The agent has no `model`.
            BudgetExhaustedError: The tree has used up its execution budget.
        """
        model = self._model
        if model is None:
            msg = f"agent {self.agent_id} has no `model`: set it on the agent to use ctx.llm"
            raise RuntimeError(msg)
        chat = chat_messages(messages)
        dumped = [message.model_dump(mode="json") for message in chat]
        chosen = options.model_dump(mode="json", exclude_defaults=True) if options else None
        words: list[JsonValue] = [model.model, dumped, chosen]  # type: ignore[list-item]
        pieces = Pieces(self._run, self._on_delta)
        pieces.call = call = EffectCall(
            "llm", EntryKind.EFFECT_INTENT, EntryKind.LLM_CALL, model.model,
            canonical_json(words), EffectMode.IDEMPOTENT,
            functools.partial(complete, model, chat, options, pieces),
            counted=has_limits(self._run.row.supervision),
        )  # fmt: skip
        return LLMResponse.model_validate(await self._effects.perform(call))

    # --- time, chance, versions -------------------------------------------------------------------

    async def now(self) -> datetime:
        """Return the current instant, aware UTC; the same on replay."""
        text = self._run.instant("now", ["now"], lambda: self._run.clock.now().isoformat())
        return datetime.fromisoformat(str(text)).astimezone(UTC)

    async def random(self) -> float:
        """Return a float in [0, 1); the same on replay."""
        return self._run.instant("random", ["random"], self._run.entropy.random)  # type: ignore[return-value]

    async def uuid(self) -> str:
        """Return 32 fresh hexadecimal digits; the same on replay."""
        return str(self._run.instant("uuid", ["uuid"], self._run.entropy.token))

    async def patched(self, patch_id: str) -> bool:
        """Return True where this run may use changed code, False where it ran the old code before.

        New runs, and runs that have not come this far, take the new path and remember it.
        """
        run = self._run
        run.turnstile.enter("patched")
        check_name_of("id of ctx.patched", patch_id)
        position = f"{run.generation_prefix}{PATCH}{patch_id}"
        known = self._patches.get(patch_id)
        if known is None:
            known = run.history.places.get(position) is not None
            if not known and not run.history.is_replaying():
                digest = args_hash(["patched", patch_id])
                payload: dict[str, JsonValue] = {
                    "effect": "patched", "hash": digest, "status": "ok", "value": True,
                }  # fmt: skip
                run.log.record(EntryKind.EFFECT_RESULT, position, payload)
                known = True
            self._patches[patch_id] = known
        return known

    # --- waiting ----------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Wait; never early, and across restarts. A long sleep costs nothing but rows."""
        await self._waits.until(None, verb="sleep", seconds=seconds)

    async def sleep_until(self, at: datetime) -> None:
        """Wait until an aware instant; returns at once when it has passed."""
        if at.tzinfo is None:
            msg = "ctx.sleep_until needs an aware datetime, for example from ctx.now()"
            raise ContractError(msg)
        await self._waits.until(instant_of(at), verb="sleep_until")

    async def sleep_until_signal(self, name: str) -> JsonValue:
        """Return the payload of the next signal of this name; earlier ones are kept for it."""
        return await self._waits.signal(name)

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the agent's next plain message, or None after `timeout` seconds."""
        return await self._waits.receive(timeout)

    async def approval(
        self, what: str, args: Any = None, *, timeout: float | None = None
    ) -> Approval:
        """Ask a person whether something may be done, and wait for the decision: days, as rows only.

        People see it with `callboard approvals list` or `Runtime.approvals`. A decision counts once, and
        for these arguments only: with others, or at another place in the code, it is another request.

        Args:
            what: Name of what is to be done.
            args: With what: JSON data, shown to the person.
            timeout: Seconds after which the run goes on with ``expired``; None: it waits.
        """
        return await approval(self._run, self._waits, what, args, timeout=timeout)

    # --- branches ---------------------------------------------------------------------------------

    async def gather(self, *coros: Coroutine[Any, Any, T] | RunHandle) -> list[Any]:
        """Run branches at the same time and return their results in order.

        The first failure closes the others and is raised. A handle is a branch that joins the run.
        """
        return await self._scopes.gather(*map(self._branch_of, coros))

    async def select(self, *coros: Coroutine[Any, Any, Any] | RunHandle) -> Selected:
        """Run branches at the same time; the first to end wins, the others are closed.

        Returns ``(index, value)``; raises what the winner raised. A handle is a branch that joins the run.
        """
        return await self._scopes.select(*map(self._branch_of, coros))

    def _branch_of(self, what: Coroutine[Any, Any, Any] | RunHandle) -> Coroutine[Any, Any, Any]:
        return self.join(what) if isinstance(what, RunHandle) else what

    def scope(self) -> Scope:
        """Open a block for branches: ``async with ctx.scope() as s: b = s.start(work()); await b``."""
        return self._scopes.scope()

    # --- talking ----------------------------------------------------------------------------------

    async def send(self, target: AgentId, payload: Message | Any) -> None:
        """Send a message; it leaves with the next flush, once, in order per target.

        Raises:
            OtherTenantError: The agent is another tenant's.
        """
        await self._talk.send(target, payload)

    async def ask(
        self,
        target: AgentId | RunHandle,
        msg: Message | Any,
        *,
        timeout: float,
        idempotency_key: str | None = None,
    ) -> AskOutcome:
        """Send a question and return its one end: replied, timed out, target failed or cancelled.

        The target answers with `reply`; when the run that has the question ends without, its end is
        the answer.

        Args:
            target: An agent, or a run of one, whose end ends the ask even if it never saw the question.
            msg: The question: JSON data, at most 256 KiB.
            timeout: Seconds until the outcome is ``timed_out``; the target goes on.
            idempotency_key: Questions of this run with the same key are one question.

        Raises:
            WaitCycleError: The target waits for this run, perhaps through others.
            UnknownRunError: There is no such run.
            OtherTenantError: The agent is another tenant's.
            ContractError: The question is too long, or has no time limit.
        """
        return await self._talk.ask(target, msg, timeout=timeout, key=idempotency_key)

    async def reply(self, to: Message, result: Any) -> None:
        """Answer a question; it leaves with the next flush. What is no question is left alone."""
        await self._talk.reply(to, result)

    # --- topics -----------------------------------------------------------------------------------

    async def follow(self, topic: TopicId | str, *, mode: FollowMode = "eager") -> None:
        """Get what is published to a topic from now on, as messages with sender ``topic:…``.

        Durable when it returns. Following again changes the mode at most.

        Args:
            topic: A topic, or ``type/source``; ``type`` alone is its source ``default``.
            mode: ``eager``: a post wakes this agent as any message does. ``lazy``: it waits until
                something else starts the agent, or a run of it asks with `receive`.

        Raises:
            OtherTenantError: The topic is another tenant's.
        """
        await self._following.follow(topic, mode)

    async def unfollow(self, topic: TopicId | str) -> None:
        """Get nothing of what is published to a topic once this has returned. Durable then.

        Raises:
            OtherTenantError: The topic is another tenant's.
        """
        await self._following.unfollow(topic)

    async def emit(self, topic: TopicId | str, msg: Message | Any) -> None:
        """Publish to a topic: each follower of that moment gets it once; it leaves with the next flush.

        Costs the same for ten followers and for 100,000. Nobody following is no error.

        Raises:
            OtherTenantError: The topic is another tenant's.
        """
        await self._following.emit(topic, msg)

    # --- what is shown live -----------------------------------------------------------------------

    async def emit_delta(self, data: Any) -> None:
        """Show something to whoever watches this run now: progress, or pieces of a text.

        A ``custom.delta`` beside those of models: `Runtime.tail` with ``live=True``, `ActorClient.events`,
        ``run.v1…`` and `callboard runs events --follow` have it. It returns at once, nothing keeps it, a
        replay does not show it again; who looks later, or too slowly, misses it. A function given to
        `step` may call it too, for the progress of something long.

        Args:
            data: A text, or other JSON data; at most 64 KiB as JSON.

        Raises:
            NotSerializableError: It is not JSON data.
            MessageTooLargeError: There is too much of it.
        """
        self._emitting.emit(data)

    # --- other runs -------------------------------------------------------------------------------

    async def spawn(
        self,
        child: Child,
        boot: Message | Any = None,
        *,
        key: str | None = None,
        supervision: Supervision | None = None,
        priority: int | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> RunHandle:
        """Start a run of another agent and return its handle at once; a replay starts none.

        Args:
            child: An agent, its id, or an agent type.
            boot: The child's first message: JSON data; None: it starts with an empty inbox.
            key: With a type: the agent's key; without it a new agent is made.
            supervision: The child's terms. Budgets are those of the tree's root whatever it says.
            priority: Lower first; the parent's by default.
            retry_policy: How the child's failures are retried; else as its agent's `retry` says.

        Raises:
            SpawnDenied: The tree's budget has no place left.
            OtherTenantError: The agent is another tenant's.
            ContractError: The child would be a run of this run's own agent.
        """
        return await self._spawning.spawn(
            child, boot, key=key, supervision=supervision, priority=priority,
            retry_policy=retry_policy,
        )  # fmt: skip

    async def join(self, run: RunHandle | str) -> RunResult:
        """Return how a run ended, when it has; also one that ended before, or was joined before.

        Raises:
            UnknownRunError: There is no such run.
            WaitCycleError: That run waits for this one, perhaps through others.
        """
        return await self._talk.join(run)

    async def cancel(self, run: RunHandle | str, *, reason: str = "") -> None:
        """Ask a run and everything below it to stop; one that has ended is left alone.

        Raises:
            UnknownRunError: There is no such run.
        """
        await self._talk.cancel(run, reason)

    async def status(self, run: RunHandle | str) -> RunStatusSummary:
        """Return how far a run is; the same on replay.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._talk.status(run)

    async def continue_as_new(self, input: Any = None) -> NoReturn:  # noqa: A002
        """Start the code again with one message whose payload is `input`; the log before it is history.

        Keeps the run id. For loops that would make the log long. Call it in the root branch.
        """
        run = self._run
        branch = run.turnstile.enter("continue_as_new")
        if branch is not run.turnstile.root or branch.groups:
            msg = "ctx.continue_as_new is for the root branch, outside gather, select and scope"
            raise ContractError(msg)
        signal = ContinueAsNew(recordable(input, where="continue_as_new"))
        run.turnstile.unwind(signal)
        raise signal
