"""RunContext: what an agent's author calls. Every verb is recorded, or says why it need not be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

from actors._kernel.agent.agent import Agent, RunMeta, Supervision
from actors._kernel.agent.message import ChatMessage, Message
from actors._kernel.agent.models import GenerationOptions, LLMResponse, prepare
from actors._kernel.agent.tools import InvocationResult
from actors._kernel.json import JsonValue, fresh, recordable
from actors._kernel.runtime.commit import DELETED, Deleted
from actors._kernel.runtime.communication import Approval, AskOutcome, FollowMode, RunStatusSummary
from actors._kernel.runtime.effects import args_hash
from actors._kernel.runtime.ids import AgentId, RunId, TopicId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.runtime.sources import RunHandle, RunResult
from actors._kernel.stores.run_store import RunStore
from actors._kernel.text import check_name_of
from actors._runtime.journal.run_log import reading, refuse_unreadable
from actors._runtime.replay.branches import Selected
from actors._runtime.replay.history import PATCH
from actors._runtime.verbs.call import Call, Payload, RunState, enter_verb, instant
from actors._runtime.verbs.conversation.chat import ChatResult, Conversations, Output
from actors._runtime.verbs.conversation.history import ConversationHistory
from actors._runtime.verbs.conversation.sessions import Sessions
from actors._runtime.verbs.effects import Effects, EffectWord, Reconcile, StepOptions
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.verbs.messaging import Following, Messaging
from actors._runtime.verbs.model_calls import LiveOutput, ToolCalls, Toolkit
from actors._runtime.verbs.question import Questions
from actors._runtime.verbs.scopes import Scope, Scopes
from actors._runtime.verbs.spawning import Child, ChildTerms, spawn
from actors._runtime.verbs.waits import Waits
from actors.errors import DeadlineExceededError

if TYPE_CHECKING:
    from actors._runtime.verbs.graph import GraphVerbs
    from actors._runtime.verbs.memory import AgentMemory


T = TypeVar("T")


class RunContext:
    """The toolkit and notebook of one run. Built anew for every execution.

    Attributes:
        meta: Facts about the run.
        state: The agent's durable values: ``get``, ``set``, ``clear``.
    """

    def __init__(
        self,
        run: RunState,
        meta: RunMeta,
        *,
        env: HostServices,
        waits: Waits,
        agent: Agent,
        sessions: Sessions,
    ) -> None:
        self.meta = meta
        self.state: AgentState = AgentState(run, env.store)
        self._run, self._env, self._agent, self._sessions = run, env, agent, sessions
        self._effects, self._scopes = Effects(run, env.secrets), Scopes(run)
        self._waits, self._questions = waits, Questions(run, waits, env.store)
        self._messaging = Messaging(
            run, waits, self._effects, store=env.store, on_cancel=env.on_cancel
        )
        self._following = Following(run, self._effects, env.foreign_topics)
        self._patches: dict[str, bool] = {}
        """Answers of `patched` in this execution, by patch id."""

    @cached_property  # as below: many runs are short and need none
    def _tools(self) -> ToolCalls:
        toolkit = Toolkit.of(self._agent)
        return ToolCalls(toolkit, self._effects, self._questions.approval, self._env.secrets)

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(
            self._agent,
            self._sessions,
            run=self._run,
            effects=self._effects,
            env=self._env,
            scopes=self._scopes,
            tools=self._tools,
            questions=self._questions,
        )

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
    def session_id(self) -> str:
        """The conversation of `generate`, `chat` and `history` where they are given none.

        That of the start of the run (`submit(session_id=…)`, or the first message's metadata ``session``),
        else the agent's attribute `session`, else the run's id: a conversation of its own.
        """
        return self._conversations.sessions.name_of(None)

    @property
    def history(self) -> ConversationHistory:
        """The turns of the agent's sessions, for an author who keeps them by hand."""
        return self._conversations.history

    @cached_property
    def memory(self) -> AgentMemory:
        """Texts that the agent keeps beyond its conversations, found by words and by meaning."""
        from actors._runtime.verbs.memory import AgentMemory  # noqa: PLC0415 - few runs use it

        return AgentMemory(self._run, self._effects)

    @cached_property
    def graph(self) -> GraphVerbs:
        """The verbs of graphs: for `actors.workflow`, not for authors."""
        from actors._runtime.verbs.graph import GraphVerbs  # noqa: PLC0415 - few runs use it

        live = LiveOutput(self._run, self._env)
        return GraphVerbs(self._run, self._effects, self._waits, live, self._env.on_nudges)

    def check(self) -> None:
        """Check that the run may go on. Not recorded.

        Raises:
            CancellationError: The run was cancelled.
            DeadlineExceededError: The run's deadline has passed.
        """
        self.meta.cancellation.check()
        deadline = self.meta.deadline
        if deadline is not None and self._run.clock.now() > deadline:
            raise DeadlineExceededError(f"run {self.run_id}", 0.0)

    @overload
    async def step(
        self, name: str, fn: Callable[..., Awaitable[T]], *args: Any, **options: Unpack[StepOptions]
    ) -> T: ...

    @overload
    async def step(
        self, name: str, fn: Callable[..., T], *args: Any, **options: Unpack[StepOptions]
    ) -> T: ...

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
        key: Message | str | None = None,
    ) -> Any:
        """Return what ``fn(*args)`` returned, executing it only if the log has no result yet.

        Durable before it returns. Live and on replay the same JSON value comes back.

        Args:
            name: Name of the step, which replay compares.
            fn: Coroutine function or plain function. What it returns has to be JSON data.
            args: JSON data; compared on replay. A `Secret` stands for its value, which `fn` gets and
                nothing records.
            retry: Tries inside this one effect; only the last outcome is recorded.
            timeout: Seconds one try may take.
            effect: ``"idempotent"`` (a crash may repeat it, with the same `idempotency_key()`) or
                ``"at_most_once"`` (a crash leaves it in doubt; it is never repeated).
            reconcile: For at-most-once: called with the `idempotency_key()` when in doubt; returns the
                value if the effect happened, raises `EffectDidNotHappen` if not.
            thread: Call `fn`, a plain function, in a thread of its own: it may block, and other agents
                go on. Cancelled or out of time, the thread goes on and what it returns is dropped.
            key: A message that this is done for, or its id: `idempotency_key()` is made of agent, sender,
                message id and `name`, and stays the same when a database that went back has the message
                handled in another run. Not compared on replay.

        Raises:
            ContractError: The run was given no message with the id `key`, or two by different senders.
            EffectInDoubtError: See `reconcile`; uncaught, the run is parked for an operator.
            NonDeterminismError: The log has another call at this position.
            Exception: What `fn` raised, as rebuilt from its record.
        """
        return await self._effects.step(
            name, fn, args, retry, timeout, effect, reconcile, thread, key
        )

    async def llm(
        self, messages: Sequence[ChatMessage] | str, *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return the model's answer; a replay never asks, and never bills, again.

        Deltas are live events while the call runs; the log keeps one ``llm.call`` with the text.

        Raises:
            RuntimeError: The agent has no `model`.
            BudgetExhaustedError: The tree has used up its execution budget.
        """
        return await self._conversations.generation.llm(messages, options)

    async def generate(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Add turns to a session, ask the model with a window of it, and add the answer.

        A replay returns the recorded answer: it reads no history, makes no window, and compares only what
        is given here. Turns and answer are durable together when it returns.

        Args:
            new: Turns; a plain text is the user's.
            session: The conversation, within the agent. By default `session_id`.
            options: For the model; compared on replay.

        Raises:
            ContractError: The agent has no `model`.
            BudgetExhaustedError: The tree has used up its execution budget.
        """
        return await self._conversations.generate(new, session, options)

    @overload
    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: None = None,
        max_turns: int = 20,
        options: GenerationOptions | None = None,
        tools: Collection[str] | None = None,
    ) -> ChatResult[str]: ...

    @overload
    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: type[T],
        max_turns: int = 20,
        options: GenerationOptions | None = None,
        tools: Collection[str] | None = None,
    ) -> ChatResult[T]: ...

    async def chat(
        self,
        *new: str | ChatMessage,
        session: str | None = None,
        output: type[Any] | None = None,
        max_turns: int = 20,
        options: GenerationOptions | None = None,
        tools: Collection[str] | None = None,
    ) -> ChatResult[Any]:
        """Let the model answer, with the agent's tools, until it has nothing more to call.

        A loop of recorded verbs: `generate`, and `tool` for each call of an answer, at the same time.
        Their approvals are asked together. Every way in which a tool goes wrong is a result that the model
        reads. After a crash no recorded call is made, or billed, again.

        Args:
            new: Turns; a plain text is the user's.
            session: The conversation, within the agent. By default `session_id`.
            output: Type that the end has to fit: a pydantic model, a dataclass, or any type pydantic knows.
            max_turns: Model calls after which the chat stops with ``max_turns``.
            options: For the model; compared on replay.
            tools: Names of the tools that the model is offered; by default all of them. An empty one offers
                none, for example in a call that only classifies. Not compared on replay.

        Raises:
            OutputError: The model was asked twice more because its output did not fit, and it still does not.
        """
        if output is not None:
            await prepare(self._conversations.model)
        output_type = Output(output, self._conversations.model)
        loop = self._conversations.loop(output_type, session, options, tools)
        return await loop.run(new, max_turns)

    async def tool(self, name: str, /, **arguments: Any) -> InvocationResult:
        """Call one of the agent's declared tools; at most once unless the tool is idempotent.

        A tool that fails, is not declared or is denied gives a result that says so. A risky one waits
        for a person first, who agrees to one call with exactly these arguments: see `ApprovalPolicy`. A
        `Secret` as an argument stands for its value, which the tool gets and nothing records.
        """
        return await self._tools.call(name, arguments)

    async def now(self) -> datetime:
        """Return the current instant, aware UTC; the same on replay."""
        text = instant(self._run, "now", lambda: self._run.clock.now().isoformat())
        return datetime.fromisoformat(str(text)).astimezone(UTC)

    async def random(self) -> float:
        """Return a float in [0, 1); the same on replay."""
        return instant(self._run, "random", self._run.entropy.random)  # type: ignore[return-value]

    async def uuid(self) -> str:
        """Return 32 fresh hexadecimal digits; the same on replay."""
        return str(instant(self._run, "uuid", self._run.entropy.token))

    async def patched(self, patch_id: str) -> bool:
        """Return True where this run may use changed code, False where it ran the old code before.

        New runs, and runs that have not come this far, take the new path and remember it.
        """
        run, answers = self._run, self._patches
        enter_verb(run, "patched")
        check_name_of("id of ctx.patched", patch_id)
        if patch_id not in answers:
            position = f"{run.generation_prefix}{PATCH}{patch_id}"
            is_recorded = run.history.calls.get(position) is not None
            answers[patch_id] = is_recorded or not run.history.is_replaying()
            if answers[patch_id] and not is_recorded:
                digest = args_hash(["patched", patch_id])
                payload: Payload = {
                    "effect": "patched",
                    "hash": digest,
                    "status": "ok",
                    "value": True,
                }
                run.log.record(K.EFFECT_RESULT, position, payload)
        return answers[patch_id]

    async def sleep(self, seconds: float) -> None:
        """Wait; never early, and across restarts. A long sleep costs nothing but rows."""
        await self._waits.until(None, verb="sleep", seconds=seconds)

    async def sleep_until(self, at: datetime) -> None:
        """Wait until an aware instant; returns at once when it has passed."""
        await self._waits.until(at, verb="sleep_until")

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
        for these arguments only: with others, or at another position in the code, it is another request.

        Args:
            what: Name of what is to be done.
            args: With what: JSON data, shown to the person.
            timeout: Seconds after which the run goes on with ``expired``; by default it waits for ever.
        """
        return await self._questions.approval(what, args, timeout)

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
        return Scope(self._run)

    async def send(self, target: AgentId, payload: Message | Any) -> None:
        """Send a message; it leaves with the next flush, once, in order per target.

        Raises:
            OtherTenantError: The agent is another tenant's.
        """
        await self._messaging.send(target, payload)

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
        return await self._questions.ask(target, msg, timeout=timeout, key=idempotency_key)

    async def reply(self, to: Message, result: Any) -> None:
        """Answer a question; it leaves with the next flush. What is no question is left alone."""
        await self._messaging.reply(to, result)

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
        await self._following.change("follow", topic, mode)

    async def unfollow(self, topic: TopicId | str) -> None:
        """Get nothing of what is published to a topic once this has returned. Durable then.

        Raises:
            OtherTenantError: The topic is another tenant's.
        """
        await self._following.change("unfollow", topic, None)

    async def emit(self, topic: TopicId | str, msg: Message | Any) -> None:
        """Publish to a topic: each follower of that moment gets it once; it leaves with the next flush.

        Costs the same for ten followers and for 100,000. Nobody following is no error.

        Raises:
            OtherTenantError: The topic is another tenant's.
        """
        await self._following.emit(topic, msg)

    async def emit_delta(self, data: Any) -> None:
        """Show something to the present watchers of this run: progress, or pieces of a text.

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
        self._conversations.live.emit(data)

    async def spawn(
        self,
        child: Child,
        boot: Message | Any = None,
        *,
        key: str | None = None,
        supervision: Supervision | None = None,
        priority: int | None = None,
        retry_policy: RetryPolicy | None = None,
        task: str | None = None,
    ) -> RunHandle:
        """Start a run of another agent and return its handle at once; a replay starts none.

        Args:
            child: An agent, its id, or an agent type, of which `key` names the agent; else it is a new one.
            boot: The child's first message: JSON data; by default it starts with an empty inbox.
            key: See `child`.
            supervision: The child's terms. Budgets are those of the tree's root whatever it says.
            priority: Lower first; the parent's by default.
            retry_policy: Retries of the child's failures; by default the `retry` of its agent.
            task: Id of the card of a task board that the run is for: its log is that of a task.

        Raises:
            SpawnDenied: The tree's budget is used up.
            OtherTenantError: The agent is another tenant's.
            ContractError: The child would be a run of this run's own agent.
        """
        terms = ChildTerms(supervision, priority, retry_policy, task)
        return await spawn(self._run, child, boot, key=key, terms=terms)

    async def join(self, run: RunHandle | str) -> RunResult:
        """Return how a run ended, when it has; also one that ended before, or was joined before.

        Raises:
            UnknownRunError: There is no such run.
            WaitCycleError: That run waits for this one, perhaps through others.
        """
        return await self._messaging.join(run)

    async def cancel(self, run: RunHandle | str, *, reason: str = "") -> None:
        """Ask a run and everything below it to stop; one that has ended is left alone.

        Raises:
            UnknownRunError: There is no such run.
        """
        await self._messaging.cancel(run, reason)

    async def status(self, run: RunHandle | str) -> RunStatusSummary:
        """Return how far a run is; the same on replay.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._messaging.status(run)

    async def continue_as_new(self, input: Any = None) -> NoReturn:  # noqa: A002
        """Start the code again with one message whose payload is `input`; the log before it is history.

        Keeps the run id. For loops that would make the log long. Call it in the root branch.
        """
        self._scopes.continue_as_new(input)


class AgentState:
    """Values that outlive the run. Writes ride with the next flush; reads are recorded.

    Between two runs of a serial agent there is no other writer.
    """

    def __init__(self, run: RunState, store: RunStore) -> None:
        self._run = run
        self._store = store
        self._stored: dict[str, JsonValue] = {}
        self._is_whole = False
        self._own: dict[str, JsonValue | Deleted] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`; the same on replay."""
        run, call = self._run, Call(self._run, "state.get")
        check_name_of("key of ctx.state.get", key)
        entry = call.meet((K.EFFECT_RESULT,), f"state.get {key}", ["get", key])
        value: JsonValue | Deleted
        if entry is not None:
            recorded_value = entry.payload.get("value", DELETED)
            is_strict = run.history.is_strict(entry.seq)
            # What this attempt has set counts: an entry of a failed attempt with another value is a miss.
            if key not in self._own or is_strict or recorded_value == self._own[key]:
                return default if isinstance(recorded_value, Deleted) else recorded_value
        if key in self._own:
            value = self._own[key]
        else:
            if not (key in self._stored or self._is_whole):
                part = await reading(run.log, lambda: self._store.reads.state_at(run.agent_id, key))
                self._stored.update(part.values)
                self._is_whole = part.is_whole
            value = self._stored.get(key, DELETED)
            refuse_unreadable(run.log, value, f"state {key!r} of {run.agent_id}")
        payload = call.result_payload(None if isinstance(value, Deleted) else value)
        if isinstance(value, Deleted):
            del payload["value"]
        run.log.record(K.EFFECT_RESULT, call.position, payload)
        return default if isinstance(value, Deleted) else fresh(value)

    async def set(self, key: str, value: Any) -> None:
        """Set `key`; part of the run's next commit."""
        data = recordable(value, where=f"state {str(key)[:60]!r}")
        self._write("state.set", key, data, ["set", key, data])

    async def clear(self, key: str) -> None:
        """Remove `key`; part of the run's next commit."""
        self._write("state.clear", key, DELETED, ["clear", key])

    def _write(
        self, verb: str, key: str, value: JsonValue | Deleted, arguments: list[JsonValue]
    ) -> None:
        run, call = self._run, Call(self._run, verb)
        check_name_of(f"key of ctx.{verb}", key)
        entry = call.meet((K.STATE_SET,), f"{verb} {key}", arguments)
        self._own[key] = value
        recorded_seq = entry.seq if entry is not None else -1
        if recorded_seq > run.history.pool_keys.get(key, -1) and run.history.is_strict(
            recorded_seq
        ):
            return  # recorded, and nothing that a failed attempt set came after it
        payload: Payload = {"key": key}
        if isinstance(value, Deleted):
            payload["deleted"] = True
        else:
            payload["value"] = value
        run.log.writes.state[key] = value
        call.record(K.STATE_SET, payload)
