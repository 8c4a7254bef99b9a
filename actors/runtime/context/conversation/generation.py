"""`ctx.generate`: new turns, a window, an answer, as one effect.

Replay compares what the author asked for. The window is made inside the effect, on a miss, and only
described in the log; see docs/replay.md, "Windows".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from actors.context.compaction.steps import Assembled
from actors.context.errors import WindowTooSmallError
from actors.context.model_sizes import context_size_of_client
from actors.context.reserve import reserving
from actors.context.tokens import Tally, TokenCounter
from actors.context.turns import PINNED
from actors.errors import ContractError, ModelError
from actors.kernel.agent.llm import GenerationOptions, LLMClient, LLMResponse
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.tools import ToolSpec
from actors.kernel.agent.transcript import NO_CUT, TOKENS, NewCut, check_turn, turn_id
from actors.kernel.json import JsonValue, canonical_json
from actors.kernel.runtime.effects import EffectCall
from actors.runtime.context.call import Payload, RunState
from actors.runtime.context.conversation.paid_calls import RecordedCalls
from actors.runtime.context.conversation.sessions import (
    LEAST,
    Sessions,
    WindowSource,
    as_turn,
    fingerprint,
    new_cut,
)
from actors.runtime.context.conversation.shown import ShownTurn, digest, shown_turn, window_digest
from actors.runtime.context.conversation.windows import assembled_window, window_parts
from actors.runtime.context.effects import Effects, effect
from actors.runtime.context.model_calls import Live, OnPiece, capped, completed
from actors.runtime.journal.reading import reading
from actors.runtime.replay.history import PAID

if TYPE_CHECKING:
    from actors.kernel.storage.history import HistoryProvider

_NO_OPTIONS: Final = GenerationOptions()
SMALLER: Final = 0.7
"""Share of a window that is sent in a second request, once, after a provider refused it as too long."""


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
        """Return all of it as the model is given it; None: nothing is asked for."""
        if self.options is None and self.instructions is None and not self.tools:
            return None
        options = self.options or GenerationOptions()
        more: dict[str, Any] = {}
        if self.tools and not options.tools:
            more["tools"] = self.tools
        if self.instructions is not None and options.system_instructions is None:
            more["system_instructions"] = self.instructions
        if self.schema is not None:
            more["response_format"] = self.schema
        return options.model_copy(update=more) if more else options


class Generation:
    """Asks the model of one run's agent, and keeps what was said."""

    def __init__(
        self,
        run: RunState,
        effects: Effects,
        live: Live,
        sessions: Sessions,
        *,
        model: LLMClient | None,
    ) -> None:
        self._run, self._effects, self._live = run, effects, live
        self._sessions, self._model = sessions, model

    async def llm(
        self, messages: Sequence[ChatMessage] | str, options: GenerationOptions | None
    ) -> LLMResponse:
        """See `RunContext.llm`."""
        call = self._live.llm(self._model, messages, options)
        return LLMResponse.model_validate(await self._effects.perform(call))

    async def ask(
        self, new: Sequence[str | ChatMessage], session: str | None, request: GenerationRequest
    ) -> LLMResponse:
        """See `RunContext.generate`."""
        model = self._model
        if model is None:
            msg = f"agent {self._run.agent_id} has no `model`: set it on the agent to use ctx.generate"
            raise ContractError(msg)
        turns = [ChatMessage.of("user", one) if isinstance(one, str) else one for one in new]
        for turn in turns:
            check_turn(turn)
        name = self._sessions.name_of(session)
        call = self._call(model, turns, request, session=session, name=name)
        response = LLMResponse.model_validate(await self._effects.perform(call))
        sessions = self._sessions
        if not sessions.is_in_store:
            said = [*turns, response.message()]
            sessions.remember(name, said)
            history = sessions.memory.history
            if history is not None and sessions.is_written:
                await self._append(history, call, name, said)
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
        dumped: list[JsonValue] = [turn.model_dump(mode="json") for turn in turns]
        options = request.options
        chosen = options.model_dump(mode="json", exclude_defaults=True) if options else None
        words: list[JsonValue] = ["generate", session, dumped, chosen]
        clock, counter = self._run.clock, self._sessions.memory.pipeline.counter
        new = _NewTurns(turns, counter)

        async def execute(on_piece: OnPiece) -> Any:
            options, guards = request.merged(), self._live.guards
            room = reserved_tokens(model, options, sum(new.sizes), counter)
            marked = new.marked(ids_of(call, self._run.run_id, len(turns)))
            asked = _Window(self._run, self._sessions, call, name, marked)
            room += await asked.read_blocks()
            with reserving(room):
                window = await asked.window()
            options = capped(call, options)
            call.receipt, call.asked_at = asked.receipt(request), clock.monotonic()
            try:
                response = await completed(model, window, options, on_piece, guards=guards)
            except ModelError as exc:
                smaller = await asked.smaller(room) if _is_too_long(exc) else None
                if smaller is None:
                    raise
                call.receipt, call.asked_at = asked.receipt(request), clock.monotonic()
                response = await completed(model, smaller, options, on_piece, guards=guards)
            return with_call_ids(response, call.position).model_dump(mode="json")

        def on_recorded(payload: Payload) -> None:
            said, tokens = [*turns], [*new.sizes]
            if payload["status"] == "ok":
                response = LLMResponse.model_validate(payload["value"])
                answer = response.message()
                said.append(answer)
                tokens.append(response.usage.output or counter.count(answer))
                self._sessions.answered[name] = None
            ids = ids_of(call, self._run.run_id, len(said))
            kept = zip(said, ids, tokens, strict=True)
            self._sessions.keep(name, [as_turn(one, name, id_, size) for one, id_, size in kept])

        call = self._live.call(model, words, execute)
        call.on_recorded, call.session = on_recorded, name
        return call

    async def _append(
        self, history: HistoryProvider, call: EffectCall, session: str, said: list[ChatMessage]
    ) -> None:
        """Give what was said to a provider outside, in one recorded effect beside the call's."""
        run = self._run
        ids = ids_of(call, run.run_id, len(said))
        marked = [with_id(message, id_) for message, id_ in zip(said, ids, strict=True)]

        async def append() -> None:
            await history.append_many(run.agent_id, marked, session_id=session, run_id=run.run_id)

        words: list[JsonValue] = ["history.append", session, list(ids)]
        append_call = effect("step", "history.append", words, append)
        await self._effects.perform(append_call, beside=f"{call.position}{PAID}append")


@dataclass(frozen=True)
class _NewTurns:
    """The turns that a call adds. They are counted once, and not on a replay."""

    turns: list[ChatMessage]
    counter: TokenCounter

    @cached_property
    def sizes(self) -> list[int]:
        """Their tokens."""
        return [self.counter.count(turn) for turn in self.turns]

    def marked(self, ids: Sequence[str]) -> list[ChatMessage]:
        """Return them as strategies are given them: no strategy drops one."""
        return [
            with_id(turn, id_, tokens=size, pinned=True)
            for turn, id_, size in zip(self.turns, ids, self.sizes, strict=True)
        ]


@dataclass(slots=True)
class _Window:
    """The window of a call, and its receipt.

    Attributes:
        new: The turns that the call adds, each with its marks.
    """

    run: RunState
    sessions: Sessions
    call: EffectCall
    session: str
    new: list[ChatMessage]
    view: WindowSource | None = None
    assembled: Assembled | None = None
    parts: dict[str, int] = field(default_factory=dict)
    blocks: list[ChatMessage] = field(default_factory=list)
    shown: list[ShownTurn] = field(default_factory=list)

    async def read_blocks(self) -> int:
        """Read the agent's blocks, if it declares some, and return their tokens."""
        labels = self.sessions.memory.blocks
        if not labels:
            return 0
        from actors.runtime.context.conversation.blocks import block_turns  # noqa: PLC0415 - few use it

        memories, agent = self.run.store.memories, self.run.agent_id
        self.blocks = await reading(self.run.log, partial(block_turns, memories, agent, labels))
        return sum(map(self.sessions.memory.pipeline.counter.count, self.blocks))

    async def window(self) -> list[ChatMessage]:
        """Return what the model is to see. New turns stay whatever a strategy does."""
        self.view = await self.sessions.view(self.session)
        fresh = {one.metadata["turn"] for one in self.new}
        known = [one for one in self.view.messages if one.metadata.get("turn") not in fresh]
        calls = RecordedCalls(self.run, self.call.position, self.session)
        pipeline = self.sessions.memory.pipeline
        tally = Tally(pipeline.counter)
        self.assembled, window = await assembled_window(
            pipeline, [*known, *self.new], calls, tally=tally
        )
        self.parts = window_parts(window, tally, fresh)
        if self.blocks:
            self.parts = {"blocks": tally.total(self.blocks), **self.parts}
        await self._cut()
        self.shown = [*map(shown_turn, self.blocks), *self.sessions.shown.of(window)]
        return [turn.message for turn in self.shown]

    async def smaller(self, room: int) -> list[ChatMessage] | None:
        """Return a window of 0.7 of the last one's size; None: the strategies make none that is smaller."""
        assert self.assembled is not None
        before = self.assembled.tokens
        with reserving(room, at_most=SMALLER * before):
            window = await self.window()
        return window if self.assembled.tokens < before else None

    async def _cut(self) -> None:
        """Let the session's next window begin where this one does, if that leaves much out."""
        assert self.view is not None
        assert self.assembled is not None
        steps = self.assembled.steps
        is_whole = not any(step.dropped or step.changed or step.added for step in steps)
        if is_whole or not self.sessions.is_in_store:
            return
        is_near = any(step.added for step in steps) or sum(step.dropped for step in steps) >= LEAST
        if self.view.added and is_near:
            # A cut names ordinals, which turns have once they are stored.
            self.view = await self.sessions.view(self.session, anew=True)
        upto, summary = new_cut(self.view, self.assembled.window)
        if upto != NO_CUT:
            before = NO_CUT if self.view.cut is None else self.view.cut.upto
            summarised_by = next((step.name for step in self.assembled.steps if step.added), None)
            made_by = summarised_by or fingerprint(self.sessions.memory.pipeline)
            cut = NewCut(self.session, upto, before, made_by, summary)
            self.run.log.writes.cuts.append(cut)
            self.sessions.forget(self.session)

    def receipt(self, request: GenerationRequest) -> dict[str, JsonValue]:
        """Return how the window was made: sizes, what strategies dropped, and digests."""
        assert self.view is not None
        assert self.assembled is not None
        tools = request.tools_sent
        steps: list[JsonValue] = [
            {
                "strategy": step.name,
                "dropped": step.dropped,
                "changed": step.changed,
                "added": step.added,
                "tokens": step.tokens_after,
            }
            for step in self.assembled.steps
            if step.dropped or step.changed or step.added
        ]
        return {
            "session": self.session,
            "head": self.view.head,
            "cut": self.view.begin,
            "turns": len(self.shown),
            "tokens": self.assembled.tokens + self.parts.get("blocks", 0),
            "parts": {**self.parts},
            "steps": steps,
            "window": window_digest(self.shown),
            "tools": digest(tools) if tools else None,
        }


def reserved_tokens(
    model: LLMClient, options: GenerationOptions | None, new: int, counter: TokenCounter
) -> int:
    """Return how many tokens are to be left free beside the turns.

    Args:
        model: Its context size counts, if it is known.
        options: Options of the call.
        new: Tokens of the new turns.
        counter: Counts the remaining tokens.

    Raises:
        WindowTooSmallError: The model's window is known, and too small for what cannot be left out.
    """
    options = options or _NO_OPTIONS
    schemas = [tool.model_dump(mode="json") for tool in options.tools]
    parts = {
        "instructions": counter.text(options.system_instructions or ""),
        "tools": counter.text(canonical_json(schemas)) if schemas else 0,
        "max_tokens": options.max_tokens or 0,
    }
    reserved = sum(parts.values())
    parts["new turns"] = new
    size = context_size_of_client(model)
    if size is not None and sum(parts.values()) > size:
        table = ", ".join(f"{name} {tokens}" for name, tokens in parts.items() if tokens)
        raise WindowTooSmallError(model.model, size, table)
    return reserved


def _is_too_long(exc: ModelError) -> bool:
    return exc.kind == "context_too_long"


def ids_of(call: EffectCall, run_id: str, count: int) -> list[str]:
    """Return the ids of the turns that a call adds: made of its position, and of its request."""
    return [turn_id(run_id, f"{call.position} {call.digest}", n) for n in range(count)]


def with_id(
    message: ChatMessage, turn: str, *, tokens: int | None = None, pinned: bool = False
) -> ChatMessage:
    """Return a message marked as the turn with this id, and of this size."""
    marks = {"turn": turn} | ({PINNED: "1"} if pinned else {})
    if tokens is not None:
        marks[TOKENS] = str(tokens)
    return message.with_metadata(message.metadata | marks)


def with_call_ids(response: LLMResponse, position: str) -> LLMResponse:
    """Return the answer with an id of its own for each tool call: some providers repeat or forget them."""
    if not any(block.type == "tool_call" for block in response.content):
        return response
    seen: set[str] = set()

    def mended(n: int, block: ContentBlock) -> ContentBlock:
        if block.type != "tool_call":
            return block
        known = (block.model_extra or {}).get("id")
        if isinstance(known, str) and known and known not in seen:
            seen.add(known)
            return block
        seen.add(f"{position}.{n}")
        return ContentBlock.model_validate(block.model_dump() | {"id": f"{position}.{n}"})

    content = [mended(n, block) for n, block in enumerate(response.content)]
    same = all(one is other for one, other in zip(content, response.content, strict=True))
    return response if same else response.model_copy(update={"content": content})
