"""The strategy that replaces old turns by a summary."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from actors._context.calls import AnsweredCall, WindowMode, ask, attempted, current_mode, may_ask
from actors._context.compaction import steps
from actors._context.tokens import (
    DEFAULT_CONTEXT_SIZE,
    ContextSizes,
    Tally,
    TokenCounter,
    context_size_of,
    context_size_of_client,
)
from actors._context.turns import TurnGroup, data_of, groups_of, is_pinned, is_summary, turns_of
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import LLMClient, prepare
from actors.errors import ContractError

MAX_KEPT_SUMMARIES: Final = 256
"""Maximum number of summaries that a strategy keeps in memory, for all conversations together."""
FRAME_TOKENS: Final = 100
"""Tokens that a request needs in addition to its instructions, the previous summary and the turns."""
MIN_SLICE_TOKENS: Final = 256
"""Minimum size of a slice of old turns, in tokens, for a model with a small window."""


class SummarizationCompaction:
    """Strategy that replaces old turns by a summary of a model. Recent and pinned turns stay unchanged.

    A summary in the view, or a summary that this strategy made for the same turns before, is extended by the
    turns after it and then replaces these, too. Turns that are too small for a call stay unchanged after it. A
    summary is made once. Turns that did not change cost no second call.

    If the model fails or takes too long, a warning is logged, and only summaries made before are used. The same
    holds, without a warning, if the new summary is not shorter than the turns that it would replace.

    Args:
        llm: The model that writes summaries. If its window is smaller than the old turns, it gets them in
            slices.
        recent_token_budget: Maximum size of the recent turns in tokens, counted from the newest in whole
            groups. The newest group is recent even if it alone is larger.
        min_old_tokens: Minimum size of old turns in tokens. Fewer are not summarised.
        max_summary_tokens: Maximum size of a summary, in tokens.
        timeout_s: Seconds that a summary may take, all slices together. None: no limit.
        prepare: Part of the token budget, above 0 and at most 1. When a session's window is larger than that, a
            runtime has the summary written after an answer. A later call uses it without waiting. This needs a
            `TokenBudgetComposedStrategy` around this strategy. None: summaries are written when a call needs
            them.
        counter: The counter of tokens.
        context_sizes: Function that returns the size of a model's window by name. It is called if the client
            has no attribute `context_window`. An unknown model has `DEFAULT_CONTEXT_SIZE`.

    Raises:
        ContractError: A size is negative, `max_summary_tokens` is below 1, or `prepare` is out of its range.
    """

    recent_token_budget: int
    min_old_tokens: int
    max_summary_tokens: int
    timeout_s: float | None

    def __init__(
        self,
        llm: LLMClient,
        recent_token_budget: int = 4_000,
        min_old_tokens: int = 1_000,
        *,
        max_summary_tokens: int = 1_000,
        timeout_s: float | None = 60.0,
        prepare: float | None = None,
        counter: TokenCounter | None = None,
        context_sizes: ContextSizes = context_size_of,
    ) -> None:
        if min(recent_token_budget, min_old_tokens) < 0 or max_summary_tokens < 1:
            sizes = f"{recent_token_budget=}, {min_old_tokens=}, {max_summary_tokens=}"
            msg = f"sizes of a summary and its turns are not negative: {sizes}"
            raise ContractError(msg)
        if prepare is not None and not 0 < prepare <= 1:
            msg = f"prepare is a part of the token budget, above 0 and at most 1: {prepare=}"
            raise ContractError(msg)
        self.prepare = prepare
        self.recent_token_budget, self.min_old_tokens = recent_token_budget, min_old_tokens
        self.max_summary_tokens, self.timeout_s = max_summary_tokens, timeout_s
        self._llm, self._counter = llm, counter or TokenCounter()
        self._context_sizes = context_sizes
        # The key is the digest of the turns that the summary covers.
        self._bought: OrderedDict[bytes, _Bought] = OrderedDict()

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """See `CompactionStrategy.compact`."""
        tally = Tally(self._counter)
        parts = _Division.of(raw_history, self.recent_token_budget, tally)
        if not parts.old:
            return raw_history
        keys = list(_digests(raw_history, parts.summaries, parts.old))
        covered, tried = self._known(keys)
        used = self._bought[keys[covered - 1]] if covered else _Bought()
        last = self._bought[keys[tried - 1]] if tried else used
        kept = used.made
        window = parts.window(kept, covered)
        if current_mode() is not WindowMode.AHEAD:
            await used.record()
            await last.record()
        is_small = parts.tokens(parts.old[tried:]) < max(1, self.min_old_tokens)
        if is_small or current_mode() is WindowMode.READY:
            return window
        previous = [kept] if kept is not None else parts.summaries
        new = turns_of(raw_history, parts.old[covered:])
        unrecorded = used.unrecorded or last.unrecorded
        text = await self._asked("\n".join(map(data_of, previous)), new, unrecorded)
        if text is None:
            return window
        made = steps.summary_message(text, upto=new[-1].turn)
        is_shorter = tally.total([made]) < tally.total([*previous, *new])
        # The second key is the digest of the window, which later calls get with further turns.
        again = list(_digests(raw_history, previous, parts.old[covered:]))[-1]
        for key in {keys[-1], again}:
            self._bought[key] = _Bought(made if is_shorter else None, unrecorded)
        while len(self._bought) > MAX_KEPT_SUMMARIES:
            self._bought.popitem(last=False)
        return parts.window(made, len(parts.old)) if is_shorter else window

    def _known(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """Return the number of old groups that a kept summary covers, and that of groups with a request."""
        covered = tried = 0
        for count, key in enumerate(keys, 1):
            if key in self._bought:
                self._bought.move_to_end(key)
                tried = count
                if self._bought[key].made is not None:
                    covered = count
        return covered, tried

    async def _asked(
        self, previous: str, turns: Sequence[ChatMessage], unrecorded: list[AnsweredCall]
    ) -> str | None:
        return await attempted(
            lambda: self._summarised(previous, turns, unrecorded),
            what="summary",
            timeout_s=self.timeout_s,
        )

    async def _summarised(
        self, previous: str, turns: Sequence[ChatMessage], unrecorded: list[AnsweredCall]
    ) -> str:
        """Return a summary that covers the previous summary and the turns. The turns are sent in slices."""
        await prepare(self._llm)
        window = context_size_of_client(self._llm, self._context_sizes) or DEFAULT_CONTEXT_SIZE
        answer = min(self.max_summary_tokens, max(1, window // 4))
        options = steps.options(answer)
        largest = max(answer, self._counter.text(previous))
        frame = self._counter.text(steps.INSTRUCTIONS) + FRAME_TOKENS
        size = max(MIN_SLICE_TOKENS, window - answer - largest - frame)
        for part in steps.slices(turns, max_tokens=size, counter=self._counter):
            request = steps.request(previous, part)
            response = await ask(self._llm, request, options=options)
            if current_mode() is WindowMode.AHEAD:
                unrecorded.append(AnsweredCall(self._llm.model, request, options, response))
            previous = response.text.strip()
            if not previous:
                msg = f"model {response.model or self._llm.model!r} answered without a summary"
                raise ValueError(msg)
        return previous


@dataclass(frozen=True, slots=True)
class _Bought:
    """An answer to a request for a summary.

    Attributes:
        made: The summary; None: the answer was not shorter than the turns.
        unrecorded: Calls for it that were made ahead and that no run has recorded yet.
    """

    made: ChatMessage | None = None
    unrecorded: list[AnsweredCall] = field(default_factory=list)

    async def record(self) -> None:
        """Record the unrecorded calls in the run whose call now uses the summary."""
        while self.unrecorded and may_ask():
            call = self.unrecorded.pop(0)
            try:
                await call.record()
            except BaseException:
                self.unrecorded.insert(0, call)  # another run records it, since this run could not
                raise


@dataclass(frozen=True, slots=True)
class _Division:
    """A view, divided into old and recent turns.

    Attributes:
        view: All turns.
        old: The groups that a summary may replace, the oldest first.
        summaries: The summaries in the view that are not pinned.
        tally: The counter of sizes.
    """

    view: list[ChatMessage]
    old: list[TurnGroup]
    summaries: list[ChatMessage]
    tally: Tally

    @classmethod
    def of(cls, view: list[ChatMessage], recent_token_budget: int, tally: Tally) -> Self:
        plain = [group for group in groups_of(view) if group.is_plain]
        room, recent = recent_token_budget, 0
        for group in reversed(plain):
            room -= tally.total(group.turns(view))
            if room < 0 and recent:
                break
            recent += 1
        summaries = [turn for turn in view if _is_replaceable(turn)]
        return cls(view, plain[: len(plain) - recent], summaries, tally)

    def tokens(self, groups: Sequence[TurnGroup]) -> int:
        """Return the size of groups in tokens."""
        return sum(self.tally.total(group.turns(self.view)) for group in groups)

    def window(self, made: ChatMessage | None, covered: int) -> list[ChatMessage]:
        """Return the view in which `made` replaces the summaries and the first `covered` groups."""
        if made is None:
            return self.view
        gone = {index for group in self.old[:covered] for index in group.indices}
        gone |= {index for index, turn in enumerate(self.view) if _is_replaceable(turn)}
        place = min(gone)
        result = []
        for index, turn in enumerate(self.view):
            if index == place:
                result.append(made)
            if index not in gone:
                result.append(turn)
        return result


def _is_replaceable(turn: ChatMessage) -> bool:
    return is_summary(turn) and not is_pinned(turn)


def _digests(
    view: Sequence[ChatMessage], summaries: Sequence[ChatMessage], groups: Sequence[TurnGroup]
) -> Iterator[bytes]:
    """Yield for each group a digest of the summaries and all groups up to it.

    The digest includes contents, so a summary of an erased or changed turn is not used.
    """
    digest = hashlib.sha256()
    for made in summaries:
        digest.update(_bytes_of(made))
    for group in groups:
        for turn in group.turns(view):
            digest.update(_bytes_of(turn))
        yield digest.digest()


def _bytes_of(turn: ChatMessage) -> bytes:
    content = [block.model_dump() for block in turn.content]
    data = [turn.turn, turn.role, turn.name, content]
    return json.dumps(data, default=str, skipkeys=True).encode()
