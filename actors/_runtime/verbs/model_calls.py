"""Calls of language models and tools, and live output: `ctx.llm`, `ctx.tool`, `ctx.emit_delta`.

Every way in which a tool can go wrong is a result that a model can read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Literal, Self, TypeAlias

from actors._kernel.agent.agent import Supervision
from actors._kernel.agent.hooks import Guard, checked
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    ReasoningDelta,
    Restart,
    TextDelta,
)
from actors._kernel.agent.tools import (
    ApprovalHandler,
    ApprovalPolicy,
    InvocationResult,
    Tool,
    ToolCall,
    ToolInvoker,
    ToolSpec,
)
from actors._kernel.json import JsonValue, canonical_json, fresh, sized
from actors._kernel.runtime.communication import Approval
from actors._kernel.runtime.effects import EffectCall, EffectMode
from actors._kernel.runtime.hints import MAX_DELTA_BYTES, Delta
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._runtime.loop.tasks import in_thread
from actors._runtime.replay.branches import BranchState
from actors._runtime.replay.failures import text_of, type_of
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.effects import Effects, effect, idempotency_key
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.verbs.secrets import Secrets
from actors.errors import ContractError, MessageTooLargeError, MiddlewareTermination, RunError

OnPiece: TypeAlias = "Callable[[TextDelta | ReasoningDelta, int], None]"
"""Called with each piece of an answer, and its number."""
CAP_BELOW: Final = 4096
"""An answer that its author does not limit is limited by a budget that leaves less: the models in use take
every limit up to here, and providers refuse one above a model's own."""
_Kind: TypeAlias = Literal["text.delta", "reasoning.delta", "custom.delta"]


class LiveOutput:
    """The live output of one execution. Nothing of it is stored.

    Args:
        run: What its verbs share.
        env: The host's services, which are called with each piece and at the end of the pieces.
        guards: The agent's guardrails. With any, an answer is shown in one piece, after it has passed them.
    """

    def __init__(self, run: RunState, env: HostServices, guards: Sequence[Guard] = ()) -> None:
        self._run, self._env, self.guards = run, env, guards
        self._counts: dict[str, int] = {}

    def emit(self, data: Any) -> None:
        """Show a delta. It takes no position and leaves no entry: code may gain such a call, or lose it.

        What an effect shows is numbered at its position, as a model call's pieces are; what the code
        between them shows at the branch's, that of a replay included.
        """
        run = self._run
        branch = run.scheduler.enter("emit_delta")
        what = f"delta of run {run.run_id}"
        delta_data, size_bytes = sized(data, where=what)
        if size_bytes > MAX_DELTA_BYTES:
            raise MessageTooLargeError(what, size_bytes, MAX_DELTA_BYTES)
        is_effect = branch.state is BranchState.WORK
        position = f"{branch.prefix}{branch.next_index - 1}" if is_effect else branch.prefix
        n = self._counts.get(position, 0)
        self._counts[position] = n + 1
        if is_effect or not run.history.is_replaying():
            self._show(position, n, "custom.delta", delta_data)

    def llm(
        self,
        model: LLMClient | None,
        messages: Sequence[ChatMessage] | str,
        options: GenerationOptions | None,
    ) -> EffectCall:
        """Return the call of a model; a plain text is one user message. Its pieces are shown, numbered."""
        if model is None:
            msg = f"agent {self._run.agent_id} has no `model`: set it on the agent to use ctx.llm"
            raise RuntimeError(msg)
        chat = [ChatMessage.of("user", messages)] if isinstance(messages, str) else [*messages]
        message_data = [message.model_dump(mode="json") for message in chat]
        option_data = options.model_dump(mode="json", exclude_defaults=True) if options else None
        arguments: list[JsonValue] = [model.model, message_data, option_data]  # type: ignore[list-item]

        async def execute(on_piece: OnPiece) -> Any:
            call.asked_at = self._run.clock.monotonic()
            limited_options = capped(call, options)
            response = await ask_model(model, chat, limited_options, on_piece, guards=self.guards)
            return response.model_dump(mode="json")

        call = self.call(model, arguments, execute)
        return call

    def call(
        self,
        model: LLMClient,
        arguments: list[JsonValue],
        execute: Callable[[OnPiece], Awaitable[Any]],
    ) -> EffectCall:
        """Return the effect that asks a model; the pieces that `execute` yields are shown, numbered."""

        async def execute_and_end() -> Any:
            try:
                return await execute(partial(self.piece, call, None))
            finally:
                self.end(call)

        call = effect("llm", model.model, arguments, execute_and_end)
        call.end, call.counted = K.LLM_CALL, is_counted(self._run.row.supervision)
        return call

    def end(self, call: EffectCall) -> None:
        """Note that the pieces of an answer have ended."""
        self._env.on_said(self._run.run_id, call.position)

    def piece(
        self, call: EffectCall, facts: JsonValue, piece: TextDelta | ReasoningDelta, n: int
    ) -> None:
        """Show a piece of an answer, its number `n`; `facts` comes with it."""
        kind: _Kind = "reasoning.delta" if isinstance(piece, ReasoningDelta) else "text.delta"
        self._show(call.position, n, kind, piece.text, call.conversation or facts)

    def _show(  # noqa: PLR0917 - the parts of a delta
        self, position: str, n: int, kind: _Kind, content: JsonValue, facts: JsonValue = None
    ) -> None:
        run = self._run
        self._env.on_delta(
            Delta(
                run_id=run.run_id,
                agent_id=run.agent_id,
                attempt=run.history.execution_number,
                position=position,
                n=n,
                kind=kind,
                text=content if isinstance(content, str) else "",
                data=facts if isinstance(content, str) else content,
                after=run.log.durable_seq,
            )
        )


def is_counted(supervision: Supervision | None) -> bool:
    """Return whether model calls are counted against a budget of the run's tree."""
    if supervision is None:
        return False
    budget = supervision.execution_budget
    limits = (budget.max_tokens, budget.max_cost_usd, budget.max_turns)
    return any(limit is not None for limit in limits)


def capped(call: EffectCall, options: GenerationOptions | None) -> GenerationOptions | None:
    """Return the options of a call that executes, its answer limited to what the tree's budget leaves.

    Replay compares the author's options, and has no use for these: it serves the recorded answer.
    """
    author_limit, tokens_left = None if options is None else options.max_tokens, call.tokens_left
    if tokens_left is None or tokens_left >= (CAP_BELOW if author_limit is None else author_limit):
        return options
    # At least 1: a run beside this one may have used up the last token since the call began.
    call.cap = max(1, tokens_left)
    return (options or GenerationOptions()).model_copy(update={"max_tokens": call.cap})


async def ask_model(
    model: LLMClient,
    messages: Sequence[ChatMessage],
    options: GenerationOptions | None,
    on_piece: OnPiece,
    *,
    guards: Sequence[Guard] = (),
    is_checked: bool = False,
) -> LLMResponse:
    """Return the model's answer. Its pieces are shown as they come, or after the guardrails have passed it.

    An answer that a limit of tokens cut off has a mark.

    Raises:
        ContractError: The stream ended without a `Completion`.
        MiddlewareTermination: A guard blocked the question or the answer.
    """
    if not guards:
        return (await _read_stream(model, messages, options, on_piece)).marked()
    if not is_checked:
        messages = await checked(guards, "input", messages)
    # No piece is shown before the guards have seen the answer.
    response = await _read_stream(model, messages, options, lambda *_: None)
    [answer] = await checked(guards, "output", [response.message()])
    response = response.model_copy(update={"content": answer.content})
    if response.text:
        on_piece(TextDelta(text=response.text), 0)
    return response.marked()


async def _read_stream(
    model: LLMClient,
    messages: Sequence[ChatMessage],
    options: GenerationOptions | None,
    on_piece: OnPiece,
) -> LLMResponse:
    n, stream = 0, model.generate_stream(messages, options=options)
    try:
        async for event in stream:
            if isinstance(event, Completion):
                return event.response
            if isinstance(event, TextDelta | ReasoningDelta):
                on_piece(event, n)
            n = 0 if isinstance(event, Restart) else n + 1  # piece 0 voids those before it
    finally:
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()  # else the collector does, later, in a task of its own
    raise ContractError(f"model {model.model!r} ended its stream without a Completion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """An agent's declarations about its tools."""

    tools: tuple[Tool, ...]
    invoker: ToolInvoker
    policy: ApprovalPolicy
    guards: tuple[Guard, ...] = ()

    @classmethod
    def of(cls, agent: object) -> Self:
        """Return what this agent declares, with the defaults for what it does not."""
        return cls(
            tools=tuple(getattr(agent, "tools", None) or ()),
            invoker=getattr(agent, "tool_invoker", None) or DirectToolInvoker(),
            policy=getattr(agent, "approval_policy", None) or ApprovalPolicy(),
            guards=tuple(getattr(agent, "guards", None) or ()),
        )

    def find(self, name: str) -> Tool | None:
        """Return the tool of this name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def use(
        self, secrets: Secrets, name: str, arguments: dict[str, Any]
    ) -> tuple[JsonValue, Callable[[], EffectCall]]:
        """Return what a person has to agree to before, None for nothing, and what makes the call.

        At most once unless the tool is idempotent; a `Secret` among the arguments stands for its value.
        """
        arguments = fresh(arguments)  # what a person agrees to is what the tool gets
        tool, sealed_call = self.find(name), secrets.seal(arguments)
        recorded_arguments = arguments if sealed_call is None else sealed_call.recorded_arguments

        async def invoke(values: dict[str, Any]) -> Any:
            key = idempotency_key()
            call = ToolCall(id=key, name=name, arguments=values)
            if self.guards:
                shown_call = ToolCall(id=key, name=name, arguments=recorded_arguments)
                result = await self._invoke_guarded(call, shown_call)
            else:
                result = await self.invoker.invoke(call, tools=self.tools, idempotency_key=key)
            return result.model_dump(mode="json", exclude_none=True)

        def call() -> EffectCall:
            execute: Callable[[], Awaitable[Any]] = partial(invoke, arguments)
            if sealed_call is not None:
                execute = sealed_call.execute(invoke, what=f"tool {name!r}")
            mode = tool.mode if tool is not None else EffectMode.IDEMPOTENT
            arguments_json = canonical_json([name, recorded_arguments])
            return EffectCall(
                "tool", K.TOOL_CALLED, K.TOOL_RESULT, name, arguments_json, mode, execute
            )

        if tool is None or not self.policy.asks_for(tool):
            return None, call
        return {"risk": tool.risk.value, "arguments": recorded_arguments}, call

    async def _invoke_guarded(self, call: ToolCall, shown_call: ToolCall) -> InvocationResult:
        """Call a tool if the guards let call and result pass. They see no values of secrets.

        A call that is blocked, or its result, is one that the model reads.
        """
        try:
            call_message = ChatMessage(role="assistant", content=[shown_call.block()])
            [checked_message] = await checked(self.guards, "tool_call", [call_message])
            if checked_message != call_message:
                call = ToolCall.of_block(checked_message.content[0])
            result = await self.invoker.invoke(call, tools=self.tools, idempotency_key=call.id)
            result_message = result.result(call).message()
            [checked_result] = await checked(self.guards, "tool_result", [result_message])
        except MiddlewareTermination as exc:
            return InvocationResult(status="denied", text=str(exc))
        if checked_result == result_message:
            return result
        return InvocationResult(status=result.status, text=checked_result.content[0].text or "")


class ToolCalls:
    """Calls of an agent's tools, as recorded effects.

    Args:
        toolkit: What the agent declares.
        effects: Performs calls.
        approval: The verb that asks a person: `Questions.approval`.
        secrets: Looked up where an argument names one.
    """

    def __init__(
        self,
        toolkit: Toolkit,
        effects: Effects,
        approval: Callable[..., Awaitable[Approval]],
        secrets: Secrets,
    ) -> None:
        self._toolkit, self._effects = toolkit, effects
        self._approval, self._secrets = approval, secrets

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The declared tools as a model sees them."""
        return tuple(tool.spec() for tool in self._toolkit.tools)

    async def call(
        self, name: str, arguments: dict[str, Any], call_id: str = ""
    ) -> InvocationResult:
        """Return the result of a tool. `call_id` is the id by which a model knows the call; spans have it."""
        request, call = self._toolkit.use(self._secrets, name, arguments)
        if request is not None:
            limit_s = self._toolkit.policy.timeout_s
            decision = await self._approval(f"tool {name}", request, limit_s, call_id)
            if not decision.is_approved:
                return denied(name, decision)
        effect_call = call()
        effect_call.tool_call_id = call_id
        return InvocationResult.model_validate(await self._effects.perform(effect_call))


def denied(name: str, decision: Approval) -> InvocationResult:
    """Return the result of a call that was not approved."""
    comment = f": {decision.comment}" if decision.comment else ""
    reason = f"{decision.by} denied it" if decision.by else "nobody decided in time"
    return InvocationResult(
        status="denied", text=f"tool {name!r} was not called: {reason}{comment}"
    )


class DirectToolInvoker:
    """Calls the tool's function in this process. See `ToolInvoker`.

    `TerminalError`, `RetryAfter` and other `RunError`s of a tool are raised: they are about the run.
    """

    async def invoke(
        self,
        call: ToolCall,
        *,
        tools: Sequence[Tool],
        idempotency_key: str,
        approval: ApprovalHandler | None = None,
    ) -> InvocationResult:
        """Return the result of the tool. The key is also `actors.idempotency_key()` inside the tool."""
        tool = next((t for t in tools if t.name == call.name), None)
        if tool is None:
            tool_names = ", ".join(sorted(t.name for t in tools)) or "none"
            return _error(
                f"tool {call.name!r} is not declared by this agent (declared: {tool_names})"
            )
        limit = asyncio.timeout(tool.timeout_s)
        try:
            async with limit:
                return await _call_tool(tool, call)
        # About the run, not the tool: a retry, or its end.
        except (RunError, ContractError):
            raise
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - a failed tool is an answer for the model
            timeout_text = f"tool {call.name!r} took longer than {tool.timeout_s} s"
            problem = timeout_text if limit.expired() else text_of(exc)
            type_ = type_of(exc)
            return _error(f"{type_.rpartition(':')[2].rpartition('.')[2]}: {problem}", type_)


async def _call_tool(tool: Tool, call: ToolCall) -> InvocationResult:
    arguments = tool.fitted(call.arguments)
    if tool.is_async:
        return InvocationResult.of(await tool.run(**arguments))

    def execute() -> InvocationResult | Awaitable[Any]:
        value = tool.run(**arguments)
        return value if isawaitable(value) else InvocationResult.of(value)

    # A plain function may block, and the conversion of a large value takes long.
    value = await in_thread(execute)
    return InvocationResult.of(await value) if isawaitable(value) else value


def _error(text: str, type_: str | None = None) -> InvocationResult:
    return InvocationResult(status="error", text=text, error_type=type_)
