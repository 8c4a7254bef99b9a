"""The window of one call of a model, its receipt, and the space that is left for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from actors.context.compaction.steps import Assembled, fitted
from actors.context.errors import WindowTooSmallError
from actors.context.repair import repaired
from actors.context.tokens import Tally, TokenCounter, context_size_of_client, reserving
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMClient
from actors.kernel.agent.tools import ToolSpec
from actors.kernel.agent.transcript import NO_CUT, NewCut
from actors.kernel.json import JsonValue, canonical_json
from actors.kernel.runtime.effects import EffectCall
from actors.runtime.context.call import RunState
from actors.runtime.context.conversation.new_turns import NewTurns
from actors.runtime.context.conversation.paid_calls import RecordedCalls
from actors.runtime.context.conversation.sessions import (
    LEAST,
    Sessions,
    WindowSource,
    changes_after,
    fingerprint,
    new_cut,
)
from actors.runtime.context.conversation.shown import ShownTurn, digest, shown_turn, window_digest
from actors.runtime.context.conversation.windows import assembled_window, window_parts
from actors.runtime.journal.reading import reading

_NO_OPTIONS: Final = GenerationOptions()
TOO_LONG_CUT: Final = "refused by the provider"
"""The name, in receipts, of the cut of a window that the provider refused as too long."""


@dataclass(slots=True)
class RequestWindow:
    """The window of a call, and its receipt.

    Attributes:
        new: The turns that the call adds, each with its marks.
        cut: The last cut that a window of the call made; it is written with the next entry.
        settled: The same with changes of new turns, which a session has as they are only if the call succeeds.
            None: the last window made no cut.
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
    cut: NewCut | None = None
    settled: NewCut | None = None

    @property
    def tokens(self) -> int:
        """Size of the turns of the last window, without blocks."""
        return 0 if self.assembled is None else self.assembled.tokens

    async def read_blocks(self) -> int:
        """Read the agent's blocks, if it declares some, and return their tokens."""
        labels = self.sessions.memory.blocks
        if not labels:
            return 0
        from actors.runtime.context.conversation.blocks import block_turns  # noqa: PLC0415 - few use it

        memories, agent = self.run.store.memories, self.run.agent_id
        self.blocks = await reading(self.run.log, partial(block_turns, memories, agent, labels))
        return sum(map(self.sessions.memory.pipeline.counter.count, self.blocks))

    async def window(self, *, at_most: int | None = None) -> list[ChatMessage]:
        """Return the turns that the model is sent. New turns stay whatever a strategy does.

        Args:
            at_most: Tokens that the window has at most, even if the strategies make none that is so small.
        """
        self.view = await self.sessions.view(self.session)
        fresh = {turn.metadata["turn"] for turn in self.new}
        earlier = [turn for turn in self.view.messages if turn.metadata.get("turn") not in fresh]
        calls = RecordedCalls(self.run, self.call.position, self.session)
        pipeline = self.sessions.memory.pipeline
        tally = Tally(pipeline.counter)
        self.assembled, window = await assembled_window(
            pipeline, [*earlier, *self.new], calls, tally=tally
        )
        if at_most is not None and self.assembled.tokens > at_most:
            self.assembled = fitted(self.assembled, at_most, tally, name=TOO_LONG_CUT)
            window = repaired(self.assembled.window)
        self.parts = window_parts(window, tally, fresh)
        if self.blocks:
            self.parts = {"blocks": tally.total(self.blocks), **self.parts}
        await self._cut()
        self.shown = [*map(shown_turn, self.blocks), *self.sessions.shown.of(window)]
        return [turn.message for turn in self.shown]

    async def smaller(self, room: int, at_most: int) -> list[ChatMessage] | None:
        """Return a window of at most so many tokens; None if none is smaller than the last one."""
        assert self.assembled is not None
        before = self.assembled.tokens
        with reserving(room, at_most=at_most):
            window = await self.window(at_most=at_most)
        return window if self.assembled.tokens < before else None

    def settle(self) -> None:
        """Let the next windows show the new turns as this one did, since the session has them now."""
        cuts = self.run.log.writes.cuts
        if self.settled is not None and self.cut in cuts:
            cuts[cuts.index(self.cut)] = self.settled

    async def _cut(self) -> None:
        """Let the session's next window begin where this one does, and show its turns as this one does."""
        assert self.view is not None
        assert self.assembled is not None
        self.settled = None
        steps, is_cut = self.assembled.steps, self.assembled.is_cut
        is_whole = not any(step.dropped or step.changed or step.added for step in steps)
        # A cut after a refusal is of one request: no strategy chose it, and a summary may still be written.
        is_for_once = any(step.name == TOO_LONG_CUT for step in steps)
        if is_whole or is_for_once or not self.sessions.is_in_store:
            return
        is_near = any(step.added for step in steps) or sum(step.dropped for step in steps) >= LEAST
        if self.view.added and (is_cut or is_near):
            # A cut names ordinals, which turns have once they are stored.
            self.view = await self.sessions.view(self.session, anew=True)
        upto, summary = new_cut(self.view, self.assembled.window, 1 if is_cut else LEAST)
        self._add_cut(self.view, upto, summary)

    def _add_cut(self, view: WindowSource, upto: int, summary: ChatMessage | None) -> None:
        assert self.assembled is not None
        known, is_cut = view.cut, self.assembled.is_cut
        is_new = summary is not None and (known is None or summary != known.summary)
        if upto == NO_CUT and (is_new or not is_cut):
            return
        upto = view.begin if upto == NO_CUT else upto
        window = self.assembled.window if is_cut else view.messages
        with_new = changes_after(upto, view, window, self.new if is_cut else ())
        if upto == view.begin and with_new == view.changes:
            return
        steps = self.assembled.steps
        summarised_by = next((step.name for step in steps if step.added), None) if is_new else None
        made_by = summarised_by or fingerprint(self.sessions.memory.pipeline)
        before = NO_CUT if known is None else known.upto
        changes = changes_after(upto, view, window)
        cuts = self.run.log.writes.cuts
        if self.cut in cuts:
            cuts.remove(self.cut)  # of a larger window, which was refused
        self.cut = NewCut(self.session, upto, before, made_by, summary, changes)
        self.settled = replace(self.cut, changes=with_new)
        cuts.append(self.cut)
        self.sessions.forget(self.session)

    def receipt(self, tools: Sequence[ToolSpec]) -> dict[str, JsonValue]:
        """Return how the window was made: sizes, what strategies dropped, and digests.

        Args:
            tools: The tools that the model is sent.
        """
        assert self.view is not None
        assert self.assembled is not None
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
    model: LLMClient, options: GenerationOptions | None, new: NewTurns, counter: TokenCounter
) -> int:
    """Return how many tokens are to be left free beside the turns.

    Args:
        model: Its context size counts, if it is known.
        options: Options of the call.
        new: The new turns. Results of tools are not counted, because they can be shortened.
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
    parts["new turns"] = new.fixed_tokens
    size = context_size_of_client(model)
    if size is not None and sum(parts.values()) > size:
        table = ", ".join(f"{name} {tokens}" for name, tokens in parts.items() if tokens)
        raise WindowTooSmallError(model.model, size, table)
    return reserved
