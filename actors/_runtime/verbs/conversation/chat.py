"""Conversations of one execution of a run, and `ctx.chat`: model, tools, model, …, until no tool is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from actors._kernel.agent.agent import Agent
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import GenerationOptions, LLMClient, LLMResponse, Usage
from actors._kernel.agent.tools import InvocationResult, ToolCall, ToolResult, ToolSpec
from actors._kernel.agent.transcript import check_turn
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.conversation.generation import Generation, GenerationRequest
from actors._runtime.verbs.conversation.history import ConversationHistory
from actors._runtime.verbs.conversation.sessions import OpenCalls, Sessions
from actors._runtime.verbs.effects import Effects
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.verbs.model_calls import LiveOutput, ToolCalls
from actors._runtime.verbs.question import Questions
from actors._runtime.verbs.scopes import Scopes
from actors.errors import ContractError, MessageTooLargeError, OutputError

T = TypeVar("T")

OUTPUT_TOOL: Final = "final_result"
"""The tool by which a model that knows no JSON schema gives its output."""
_VALUE: Final = "value"
"""Key of an output whose type is no object."""
MAX_CORRECTIONS: Final = 2
"""Number of times that a model is asked again because its output does not fit."""
CUT: Final = "a limit of tokens cut the answer off"
"""Text for the model in place of the end of an answer that was cut off."""
MAX_SHOWN: Final = 2_000
"""Characters of a problem that a model is shown."""
MAX_RESULT: Final = 1_000_000
"""Characters that are left of a tool's result that is too large for a turn."""


class Conversations:
    """The conversations of one execution of a run.

    Attributes:
        sessions: Names and reads them.
        history: The turns of the agent's sessions.
        live: Live events of the run.
        model: The agent's model, or None if it has none.
    """

    def __init__(
        self,
        agent: Agent,
        sessions: Sessions,
        *,
        run: RunState,
        effects: Effects,
        env: HostServices,
        scopes: Scopes,
        tools: ToolCalls,
        questions: Questions,
    ) -> None:
        self.model: LLMClient | None = getattr(agent, "model", None)
        self.sessions, self._scopes = sessions, scopes
        self._tools = ToolsOfChat(run, questions, tools)
        self.history = ConversationHistory(run, effects, sessions, env.store.data.transcripts)
        self.live = LiveOutput(run, env, getattr(agent, "guards", None) or ())
        self.generation = Generation(run, effects, self.live, sessions, model=self.model)
        self._instructions: str | None = getattr(agent, "instructions", None)

    async def generate(
        self,
        new: Sequence[str | ChatMessage],
        session: str | None,
        options: GenerationOptions | None,
    ) -> LLMResponse:
        """Add turns to a session, ask the model with a window of it, and return the answer."""
        request = GenerationRequest(options, (), self._instructions)
        return await self.generation.ask(new, session, request)

    def loop(
        self,
        output: Output[T],
        session: str | None,
        options: GenerationOptions | None,
        names: Collection[str] | None = None,
    ) -> ChatLoop[T]:
        """Return the loop of a chat that offers tools of these names. See `RunContext.chat`."""
        tools = self._tools.only(names)
        return ChatLoop(
            generate=self.generation.ask,
            together=self._scopes.gather,
            use=tools.call,
            keep=partial(self._keep, session),
            tools=GenerationRequest(None, tools.specs, self._instructions),
            output=output,
            session=session,
            options=options,
            name=self.sessions.name_of(session),
            open=self.sessions.calls,
        )

    async def _keep(self, session: str | None, messages: Sequence[ChatMessage]) -> None:
        if messages:
            await self.history.append(*messages, session=session)


@dataclass(frozen=True, slots=True)
class ChatResult(Generic[T]):
    """The end of a chat.

    Attributes:
        output: The typed output; without a type the text; None if the chat was stopped before its end.
        text: Text of the last answer; if the chat was stopped before its end, of the last one that has a text.
        usage: Usage of all model calls of the chat together.
        turns: Number of model calls.
        stopped: ``end``: the model was done. ``length``: a limit of tokens cut its answer off. ``max_turns``:
            it wanted to go on.
    """

    output: T | None
    text: str
    usage: Usage
    turns: int
    stopped: Literal["end", "length", "max_turns"]


class Output(Generic[T]):
    """The type that the end of a chat has to fit: a pydantic model, a dataclass, or any other type.

    Args:
        type_: The type, or None if any text will do.
        model: A client with ``has_response_format = True`` is given the schema; others get a tool for it.
    """

    def __init__(self, type_: type[T] | None, model: LLMClient | None) -> None:
        self._adapter: TypeAdapter[T] | None = None if type_ is None else TypeAdapter(type_)
        # Only a typed output asks: the answer may load an SDK, which would stop the event loop.
        self._is_native = type_ is not None and bool(getattr(model, "has_response_format", False))

    @property
    def is_typed(self) -> bool:
        """True if not any text will do."""
        return self._adapter is not None

    @property
    def tool(self) -> ToolSpec | None:
        """The tool that takes the output, or None if none is needed."""
        if self._adapter is None or self._is_native:
            return None
        description = "Give the final answer. Call it once, when you are done."
        return ToolSpec(name=OUTPUT_TOOL, description=description, parameters=self._schema)

    def options(self, options: GenerationOptions | None) -> GenerationOptions | None:
        """Return the author's options with the schema, where the model takes one."""
        if self._adapter is None or not self._is_native:
            return options
        schema = {"response_format": self._adapter.json_schema()}
        return (options or GenerationOptions()).model_copy(update=schema)

    @property
    def schema(self) -> dict[str, Any] | None:
        """The schema that the model is sent in place of that of `options`, or None if none is sent.

        Replay compares the options, so those of recorded calls have to stay as they are.
        """
        return self._schema if self._adapter is not None and self._is_native else None

    def of_text(self, text: str) -> T:
        """Return the output that a text is.

        Raises:
            ValueError: It does not fit.
        """
        if self._adapter is None:
            return text  # type: ignore[return-value]
        return self._of_data(from_json(_json_in(text)))

    def of_call(self, arguments: dict[str, Any]) -> T:
        """Return the output that a call of the output tool gives.

        Raises:
            ValueError: It does not fit.
        """
        return self._of_data(arguments)

    @cached_property
    def _schema(self) -> dict[str, Any]:
        """JSON schema of type object: providers take no other at the root."""
        assert self._adapter is not None
        schema = self._adapter.json_schema()
        if schema.get("type") == "object":
            return {"properties": {}, **schema}
        definitions = {key: schema.pop(key) for key in ("$defs",) if key in schema}
        object_schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE]}
        return {**object_schema, "additionalProperties": False, **definitions}

    def _of_data(self, data: Any) -> T:
        """Return the output that JSON data is, with or without the object around it.

        Raises:
            ValueError: It does not fit.
        """
        assert self._adapter is not None
        is_wrapped = self._adapter.json_schema().get("type") != "object"
        if is_wrapped and isinstance(data, dict) and data.keys() == {_VALUE}:
            try:
                return self._valid(data[_VALUE])
            except ValueError:
                # A model that was not given the schema may mean its own key.
                with suppress(ValueError):
                    return self._valid(data)
                raise
        return self._valid(data)

    def _valid(self, data: Any) -> T:
        assert self._adapter is not None
        # As JSON, because a strict type takes a date or an enum as text only from JSON.
        return self._adapter.validate_json(to_json(data, inf_nan_mode="constants"))


class ToolsOfChat:
    """The tools of one execution of a run: those of its agent, and those that came with its messages.

    A tool of the agent hides one of the same name that came with a message.

    Attributes:
        names: Names of the tools that a chat offers, or None if it offers all of them.
    """

    names: Collection[str] | None = None

    def __init__(self, run: RunState, questions: Questions, own: ToolCalls) -> None:
        self._run, self._questions, self._own = run, questions, own
        hidden_names = {OUTPUT_TOOL, *(spec.name for spec in own.specs)}
        self._client_tools = {
            client_tool.name: client_tool
            for client_tool in run.client_tools
            if client_tool.name not in hidden_names
        }

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model sees them."""
        specs = (*self._own.specs, *self._client_tools.values())
        return tuple(spec for spec in specs if self.names is None or spec.name in self.names)

    def only(self, names: Collection[str] | None) -> ToolsOfChat:
        """Return the tools with these names.

        Raises:
            ContractError: There is no tool of such a name.
        """
        if names is None:
            return self
        unknown_names = sorted({*names} - {spec.name for spec in self.specs})
        if unknown_names:
            declared_names = ", ".join(sorted(spec.name for spec in self.specs)) or "none"
            raise ContractError(
                f"ctx.chat(tools=): {unknown_names} are not declared (declared: {declared_names})"
            )
        tools = copy(self)
        tools.names = frozenset(names)
        return tools

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> InvocationResult:
        """Call a tool. One of the client waits, as rows only if it takes long, for the client's result."""
        if self.names is not None and name not in self.names:
            text = (
                f"tool {name!r} is not offered (offered: {', '.join(sorted(self.names)) or 'none'})"
            )
            return InvocationResult(status="error", text=text)
        if name not in self._client_tools:
            return await self._own.call(name, arguments, call_id)
        self._run.begun_calls.add(call_id)
        payload = await self._questions.client_tool(call_id, name, arguments)
        try:
            return InvocationResult.model_validate(payload)
        except ValidationError:
            text = f"the client gave no result of tool {name!r} that can be read"
            return InvocationResult(status="error", text=text)


@dataclass(slots=True)
class ChatLoop(Generic[T]):
    """The loop of a chat.

    Attributes:
        generate: Function that asks the model: `Generation.ask`.
        together: Function that runs branches at the same time: `Scopes.gather`.
        use: Calls a declared tool; the last argument is the model's id of the call.
        keep: Puts turns at the end of the session that no model call follows.
        tools: What the model may call, and the agent's instructions.
        output: What the end has to fit.
        session: As the author gave it.
        options: As the author gave them.
        name: The session's name.
        open: The run's calls without a result in their session.
    """

    generate: Callable[
        [Sequence[str | ChatMessage], str | None, GenerationRequest], Awaitable[LLMResponse]
    ]
    together: Callable[..., Awaitable[list[Any]]]
    use: Callable[[str, dict[str, Any], str], Awaitable[InvocationResult]]
    keep: Callable[[Sequence[ChatMessage]], Awaitable[None]]
    tools: GenerationRequest
    output: Output[T]
    session: str | None
    options: GenerationOptions | None
    name: str
    open: OpenCalls

    async def run(self, new: Sequence[str | ChatMessage], max_turns: int) -> ChatResult[T]:
        """Return the end of the chat, which begins with these turns."""
        if max_turns < 1:
            raise ContractError(f"ctx.chat needs at least one turn: {max_turns=}")
        specs = (*self.tools.tools, *filter(None, [self.output.tool]))
        request = GenerationRequest(
            self.output.options(self.options), specs, self.tools.instructions, self.output.schema
        )
        usage, corrections = Usage(), 0
        turns: Sequence[str | ChatMessage] = new
        text = ""
        for n in range(1, max_turns + 1):
            response = await self._generate(turns, request)
            usage, text = usage + response.usage, response.text or text
            calls = _calls_of(response)
            try:
                final_output = self._final(response, calls)
            except ValueError as exc:
                if corrections == MAX_CORRECTIONS:
                    raise OutputError(_problem_text(exc), response.text) from exc
                corrections += 1
                problem = (
                    f"The output does not fit its schema: {_problem_text(exc)}. Give it again."
                )
                turns = [_result(call, problem, is_error=True) for call in calls]
                turns = turns or [ChatMessage.of("user", problem)]
                continue
            if final_output is not None:
                # Their calls are answered, so that the conversation can go on.
                await self.keep([_result(call, "accepted", is_error=False) for call in calls])
                end: Literal["end", "length"] = "length" if response.is_cut_off else "end"
                return ChatResult(final_output[0], response.text, usage, n, end)
            turns = await self._results(calls)
        await self.keep([turn for turn in turns if isinstance(turn, ChatMessage)])
        self.open.close(turns)
        return ChatResult(None, text, usage, max_turns, "max_turns")

    async def _generate(
        self, turns: Sequence[str | ChatMessage], request: GenerationRequest
    ) -> LLMResponse:
        try:
            response = await self.generate(turns, self.session, request)
        # Results are kept with a recorded error. A call that was cancelled has kept none.
        except Exception:
            self.open.close(turns)
            raise
        self.open.close(turns)
        return response

    async def _use(self, call: ToolCall) -> InvocationResult:
        result = await self.use(call.name, call.arguments, call.id)
        self.open.end(call.id, result.result(call).message())
        return result

    def _final(
        self, response: LLMResponse, calls: Sequence[ToolCall | ToolResult]
    ) -> tuple[T] | None:
        """Return the output, in a tuple, or None if the model goes on.

        Raises:
            ValueError: It does not fit.
        """
        if self.output.tool is not None:
            output_calls = [c for c in calls if isinstance(c, ToolCall) and c.name == OUTPUT_TOOL]
            if output_calls:
                return (self.output.of_call(output_calls[0].arguments),)
        if calls:
            return None
        if response.is_cut_off and self.output.is_typed:
            raise ValueError(CUT)  # half of a number is a number
        return (self.output.of_text(response.text),)

    async def _results(self, calls: Sequence[ToolCall | ToolResult]) -> list[ChatMessage]:
        """Return what the tools gave, in the order of the calls. They run at the same time."""
        tool_calls = [call for call in calls if isinstance(call, ToolCall)]
        self.open.add(self.name, tool_calls)
        results = iter(await self.together(*map(self._use, tool_calls)))
        return [
            _fit_turn(next(results).result(call)) if isinstance(call, ToolCall) else call.message()
            for call in calls
        ]


def _fit_turn(result: ToolResult) -> ChatMessage:
    """Return a result as a turn: the beginning of one that is too large, because the tool was called."""
    message = result.message()
    try:
        check_turn(message)
    except MessageTooLargeError:
        note = f"[cut: {MAX_RESULT:,} of {len(result.text):,} characters are shown; ask for less]"
        text = f"{result.text[:MAX_RESULT]}\n{note}"
        return result.model_copy(update={"text": text}).message()
    return message


def _calls_of(response: LLMResponse) -> list[ToolCall | ToolResult]:
    """Return the calls of an answer; for one that cannot be read, what is said of it instead."""
    calls = [_call_of(block) for block in response.content if block.type == "tool_call"]
    if not response.is_cut_off:
        return calls
    # Arguments that were cut may fit all the same.
    return [
        ToolResult(id=call.id, name=call.name, text=f"not called: {CUT}", is_error=True)
        for call in calls
    ]


def _call_of(block: ContentBlock) -> ToolCall | ToolResult:
    data = block.model_extra or {}
    name = str(data.get("name") or "")
    arguments = data.get("invalid_arguments", data.get("arguments"))
    try:
        if isinstance(arguments, str):
            arguments = from_json(arguments) if arguments.strip() else {}
        return ToolCall(id=str(data.get("id")), name=name, arguments=arguments or {})
    except ValueError as exc:
        text = f"the arguments of {name!r} are no JSON object: {_problem_text(exc)}"
        return ToolResult(id=str(data.get("id")), name=name, text=text, is_error=True)


def _result(call: ToolCall | ToolResult, text: str, *, is_error: bool) -> ChatMessage:
    return ToolResult(id=call.id, name=call.name, text=text, is_error=is_error).message()


def _problem_text(exc: ValueError) -> str:
    if isinstance(exc, ValidationError):
        problems = (
            f"{'.'.join(map(str, error['loc'])) or 'value'}: {error['msg']}"
            for error in exc.errors(include_url=False, include_input=False)
        )
        return "; ".join(problems)[:MAX_SHOWN]
    return str(exc)[:MAX_SHOWN]


def _json_in(text: str) -> str:
    """Return the JSON of an answer, without the fence that models put around it."""
    inner = text.strip()
    if inner.startswith("```") and inner.endswith("```"):
        return inner[3:-3].removeprefix("json").strip()
    return inner
