"""`ctx.generate`: new turns, a window, an answer, as one effect.

Replay compares what the author asked for. The window is made inside the effect, on a miss, and only
described in the log; see docs/replay.md, "Windows".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors._context.tokens import reserving
from actors._kernel.agent.hooks import checked
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import (
    GenerationOptions,
    LLMClient,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    prepare,
)
from actors._kernel.agent.tools import ToolSpec
from actors._kernel.json import JsonValue
from actors._kernel.runtime.effects import EffectCall
from actors._runtime.replay.history import PAID
from actors._runtime.verbs.call import Payload, RunState
from actors._runtime.verbs.conversation.history import (
    REPLACED,
    TOO_LONG,
    NewTurns,
    as_data,
    asked_turns,
    ids_of,
    own_turns,
    stored_turns,
    with_id,
)
from actors._runtime.verbs.conversation.sessions import Sessions, as_turn
from actors._runtime.verbs.conversation.windows import RequestWindow, reserved_tokens
from actors._runtime.verbs.effects import Effects, effect
from actors._runtime.verbs.model_calls import LiveOutput, OnPiece, ask_model, capped
from actors.errors import ContractError, ModelError

if TYPE_CHECKING:
    from actors._kernel.stores.conversations import HistoryProvider

SMALLER: Final = (0.7, 0.4, 0.2)
"""Parts of a window that are sent in further requests, in order, while a provider refuses them as too long."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Everything that a model is asked for beside the conversation.

    Attributes:
        options: The author's; compared on replay.
        tools: What the model may call. Not compared: a tool may gain a description.
        instructions: The agent's own, in front of everything. Not compared.
        schema: Sent in place of the options' `response_format`. Not compared.
    """

    options: GenerationOptions | None = None
    tools: tuple[ToolSpec, ...] = ()
    instructions: str | None = None
    schema: dict[str, Any] | None = None

    @property
    def tools_sent(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is given: the author's, else the agent's."""
        return (self.options.tools if self.options else ()) or self.tools

    def merged(self) -> GenerationOptions | None:
        """Return all of it as the model is given it, or None if nothing is asked for."""
        if self.options is None and self.instructions is None and not self.tools:
            return None
        options = self.options or GenerationOptions()
        updates: dict[str, Any] = {}
        if self.tools and not options.tools:
            updates["tools"] = self.tools
        if self.instructions is not None and options.system_instructions is None:
            updates["system_instructions"] = self.instructions
        if self.schema is not None:
            updates["response_format"] = self.schema
        return options.model_copy(update=updates) if updates else options


class Generation:
    """Asks the model of one run's agent, and keeps what was said."""

    def __init__(
        self,
        run: RunState,
        effects: Effects,
        live: LiveOutput,
        sessions: Sessions,
        *,
        model: LLMClient | None,
    ) -> None:
        self._run, self._effects, self._live = run, effects, live
        self._sessions, self._model = sessions, model

    async def llm(
        self, messages: Sequence[ChatMessage] | str, options: GenerationOptions | None
    ) -> LLMResponse:
        """Return the model's answer to these messages alone, as an effect."""
        call = self._live.llm(self._model, messages, options)
        return LLMResponse.model_validate(await self._effects.perform(call))

    async def ask(
        self, new: Sequence[str | ChatMessage], session: str | None, request: GenerationRequest
    ) -> LLMResponse:
        """Return the model's answer to new turns of a session, and keep both there."""
        model = self._model
        if model is None:
            msg = f"agent {self._run.agent_id} has no `model`: set it on the agent to use ctx.generate"
            raise ContractError(msg)
        turns = own_turns(new)
        name = self._sessions.name_of(session)
        call = self._call(model, turns, request, session=session, name=name)
        response = LLMResponse.model_validate(await self._effects.perform(call))
        sessions = self._sessions
        if not sessions.is_in_store:
            turns_of_call = [*asked_turns(turns, call.payload), response.message().copied()]
            sessions.remember(name, turns_of_call)
            history = sessions.memory.history
            if history is not None and sessions.is_written:
                ids = ids_of(call, self._run.run_id, len(turns_of_call))
                await self._append(history, call, name, zip(turns_of_call, ids, strict=True))
        return response

    def _call(
        self,
        model: LLMClient,
        turns: list[ChatMessage],
        request: GenerationRequest,
        *,
        session: str | None,
        name: str,
    ) -> EffectCall:
        options = request.options
        option_data = options.model_dump(mode="json", exclude_defaults=True) if options else None
        arguments: list[JsonValue] = ["generate", session, as_data(turns), option_data]
        counter = self._sessions.memory.pipeline.counter
        new = NewTurns(turns, counter)
        request_window: RequestWindow | None = None

        async def execute(on_piece: OnPiece) -> Any:
            nonlocal request_window
            checked_turns, guards = new, self._live.guards
            if guards and turns:  # guards saw the earlier turns when these were new
                passed_turns = await checked(guards, "input", turns)
                if passed_turns != turns:
                    checked_turns = NewTurns(passed_turns, counter, is_replaced=True)

            def show(piece: TextDelta | ReasoningDelta, n: int) -> None:
                if self._run.mode is not None and not call.is_inner:
                    self._sessions.calls.show(call.position, piece, n)
                on_piece(piece, n)

            ids = ids_of(call, self._run.run_id, len(checked_turns.turns))
            request_window = RequestWindow(
                self._run, self._sessions, call, name, checked_turns.marked(ids)
            )
            response = await self._answer(request_window, checked_turns, request, show)
            return with_call_ids(response, call.position).model_dump(mode="json")

        def on_recorded(payload: Payload) -> None:
            self._sessions.calls.end_answer(call.position)
            session_turns = stored_turns(turns, payload)
            # Turns of a guard, and withheld results, are others than those that were counted.
            tokens = [
                *(new.sizes if session_turns == turns else NewTurns(session_turns, counter).sizes)
            ]
            ids = ids_of(call, self._run.run_id, len(session_turns) + 1)
            if payload["status"] == "ok":
                response = LLMResponse.model_validate(payload["value"])
                answer = response.message().copied()
                session_turns.append(answer)
                tokens.append(response.usage.output or counter.count(answer))
                self._sessions.answered[name] = None
                if request_window is not None:
                    request_window.settle()
            rows = zip(session_turns, ids, tokens, strict=False)
            self._sessions.keep(
                name, [as_turn(message, name, id_, size) for message, id_, size in rows]
            )

        call = self._live.call(model, arguments, execute)
        call.on_recorded, call.session = on_recorded, name
        call.is_inner = name != self._sessions.name_of(None)
        return call

    async def _answer(
        self,
        request_window: RequestWindow,
        new: NewTurns,
        request: GenerationRequest,
        on_piece: OnPiece,
    ) -> LLMResponse:
        """Return the model's answer to the new turns, with a window of the session."""
        model, options, call = self._model, request.merged(), request_window.call
        assert model is not None
        await prepare(model)
        tokens_beside = (
            reserved_tokens(model, options, new, new.counter) + await request_window.read_blocks()
        )
        with reserving(tokens_beside):
            window = await request_window.window()
        options, tokens = capped(call, options), request_window.tokens
        receipt_extras: dict[str, JsonValue] = {"inner": True} if call.is_inner else {}
        if new.is_replaced:
            receipt_extras[REPLACED] = as_data(new.turns)
        # Sizes are estimates: a window that the provider refuses as too long is made smaller.
        parts = iter(SMALLER)
        while True:
            call.receipt = request_window.receipt(request.tools_sent) | receipt_extras
            call.asked_at = self._run.clock.monotonic()
            try:
                return await ask_model(
                    model, window, options, on_piece, guards=self._live.guards, is_checked=True
                )
            except ModelError as exc:
                share = next(parts, None) if exc.kind == TOO_LONG else None
                smaller = (
                    None
                    if share is None
                    else await request_window.smaller(tokens_beside, int(share * tokens))
                )
                if smaller is None:
                    raise
                window = smaller

    async def _append(
        self,
        history: HistoryProvider,
        call: EffectCall,
        session: str,
        turns: Iterable[tuple[ChatMessage, str]],
    ) -> None:
        """Give turns with their ids to a provider outside, in one recorded effect beside the call's."""
        run = self._run
        marked_messages = [with_id(message, id_) for message, id_ in turns]
        ids = [message.metadata["turn"] for message in marked_messages]

        async def append() -> None:
            await history.append_many(
                run.agent_id, marked_messages, session_id=session, run_id=run.run_id
            )

        arguments: list[JsonValue] = ["history.append", session, list(ids)]
        append_call = effect("step", "history.append", arguments, append)
        await self._effects.perform(append_call, beside=f"{call.position}{PAID}append")


def with_call_ids(response: LLMResponse, position: str) -> LLMResponse:
    """Return the answer with an id of its own for each tool call: some providers repeat or forget them."""
    if not any(block.type == "tool_call" for block in response.content):
        return response
    seen_ids: set[str] = set()

    def mended(n: int, block: ContentBlock) -> ContentBlock:
        if block.type != "tool_call":
            return block
        call_id = (block.model_extra or {}).get("id")
        if isinstance(call_id, str) and call_id and call_id not in seen_ids:
            seen_ids.add(call_id)
            return block
        seen_ids.add(f"{position}.{n}")
        return ContentBlock.model_validate(block.model_dump() | {"id": f"{position}.{n}"})

    content = [mended(n, block) for n, block in enumerate(response.content)]
    is_same = all(b is original for b, original in zip(content, response.content, strict=True))
    return response if is_same else response.model_copy(update={"content": content})
