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
        timeout_s: Seconds that a summary may take, all slices together, or None for no limit.
        prepare: Part of the token budget, above 0 and at most 1. When a session's window is larger than that, a
            runtime has the summary written after an answer. A later call uses it without waiting. This needs a
            `TokenBudgetComposedStrategy` around this strategy. None if summaries are written when a call needs
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
        self._answers: OrderedDict[bytes, _SummaryAnswer] = OrderedDict()

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the turns with a summary in place of the old ones, or as they are if there is none."""
        tally = Tally(self._counter)
        parts = _Division.of(raw_history, self.recent_token_budget, tally)
        if not parts.old:
            return raw_history
        keys = list(_digests(raw_history, parts.summaries, parts.old))
        covered_count, tried_count = self._count_known(keys)
        used_answer = self._answers[keys[covered_count - 1]] if covered_count else _SummaryAnswer()
        last_answer = self._answers[keys[tried_count - 1]] if tried_count else used_answer
        summary = used_answer.summary
        window = parts.window(summary, covered_count)
        # Calls made ahead are in no log: the first run that uses their summary records them, with their cost.
        if current_mode() is not WindowMode.AHEAD:
            await used_answer.record()
            await last_answer.record()
        is_small = parts.tokens(parts.old[tried_count:]) < max(1, self.min_old_tokens)
        if is_small or current_mode() is WindowMode.READY:
            return window
        previous_summaries = [summary] if summary is not None else parts.summaries
        new_turns = turns_of(raw_history, parts.old[covered_count:])
        unrecorded = used_answer.unrecorded or last_answer.unrecorded
        text = await self._try_to_summarise(
            "\n".join(map(data_of, previous_summaries)), new_turns, unrecorded
        )
        if text is None:
            return window
        new_summary = steps.summary_message(text, upto=new_turns[-1].turn)
        is_shorter = tally.total([new_summary]) < tally.total([*previous_summaries, *new_turns])
        # The second key is the digest of the window, which later calls get with further turns.
        window_key = list(_digests(raw_history, previous_summaries, parts.old[covered_count:]))[-1]
        for key in {keys[-1], window_key}:
            self._answers[key] = _SummaryAnswer(new_summary if is_shorter else None, unrecorded)
        while len(self._answers) > MAX_KEPT_SUMMARIES:
            self._answers.popitem(last=False)
        return parts.window(new_summary, len(parts.old)) if is_shorter else window

    def _count_known(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """Return the number of old groups that a kept summary covers, and that of groups with a request."""
        covered_count = tried_count = 0
        for count, key in enumerate(keys, 1):
            if key in self._answers:
                self._answers.move_to_end(key)
                tried_count = count
                if self._answers[key].summary is not None:
                    covered_count = count
        return covered_count, tried_count

    async def _try_to_summarise(
        self, previous_summary: str, turns: Sequence[ChatMessage], unrecorded: list[AnsweredCall]
    ) -> str | None:
        return await attempted(
            lambda: self._summarise(previous_summary, turns, unrecorded),
            what="summary",
            timeout_s=self.timeout_s,
        )

    async def _summarise(
        self, summary: str, turns: Sequence[ChatMessage], unrecorded: list[AnsweredCall]
    ) -> str:
        """Return a summary that covers the previous summary and the turns. The turns are sent in slices."""
        await prepare(self._llm)
        window = context_size_of_client(self._llm, self._context_sizes) or DEFAULT_CONTEXT_SIZE
        answer_tokens = min(self.max_summary_tokens, max(1, window // 4))
        options = steps.options(answer_tokens)
        largest_summary = max(answer_tokens, self._counter.text(summary))
        frame = self._counter.text(steps.INSTRUCTIONS) + FRAME_TOKENS
        size = max(MIN_SLICE_TOKENS, window - answer_tokens - largest_summary - frame)
        for turns_text in steps.slices(turns, max_tokens=size, counter=self._counter):
            request = steps.request(summary, turns_text)
            response = await ask(self._llm, request, options=options)
            if current_mode() is WindowMode.AHEAD:
                unrecorded.append(AnsweredCall(self._llm.model, request, options, response))
            summary = response.text.strip()
            if not summary:
                msg = f"model {response.model or self._llm.model!r} answered without a summary"
                raise ValueError(msg)
        return summary


@dataclass(frozen=True, slots=True)
class _SummaryAnswer:
    """An answer to a request for a summary.

    Attributes:
        summary: The summary, or None if the answer was not shorter than the turns.
        unrecorded: Calls for it that were made ahead and that no run has recorded yet.
    """

    summary: ChatMessage | None = None
    unrecorded: list[AnsweredCall] = field(default_factory=list)

    async def record(self) -> None:
        """Record the unrecorded calls in the run whose call now uses the summary."""
        while self.unrecorded and may_ask():
            call = self.unrecorded.pop(0)
            try:
                await call.record()
            # Also if this run is cancelled: the call was paid for, and another run has to record it.
            except BaseException:
                self.unrecorded.insert(0, call)
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
        remaining_tokens, recent_count = recent_token_budget, 0
        for group in reversed(plain):
            remaining_tokens -= tally.total(group.turns(view))
            if remaining_tokens < 0 and recent_count:
                break
            recent_count += 1
        summaries = [turn for turn in view if _is_replaceable(turn)]
        return cls(view, plain[: len(plain) - recent_count], summaries, tally)

    def tokens(self, groups: Sequence[TurnGroup]) -> int:
        """Return the size of groups in tokens."""
        return sum(self.tally.total(group.turns(self.view)) for group in groups)

    def window(self, summary: ChatMessage | None, covered_count: int) -> list[ChatMessage]:
        """Return the view in which `summary` replaces the summaries and the first `covered_count` groups."""
        if summary is None:
            return self.view
        replaced_indexes = {index for group in self.old[:covered_count] for index in group.indices}
        replaced_indexes |= {index for index, turn in enumerate(self.view) if _is_replaceable(turn)}
        first_index = min(replaced_indexes)
        result = []
        for index, turn in enumerate(self.view):
            if index == first_index:
                result.append(summary)
            if index not in replaced_indexes:
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
    for summary in summaries:
        digest.update(_bytes_of(summary))
    for group in groups:
        for turn in group.turns(view):
            digest.update(_bytes_of(turn))
        yield digest.digest()


def _bytes_of(turn: ChatMessage) -> bytes:
    content = [block.model_dump() for block in turn.content]
    data = [turn.turn, turn.role, turn.name, content]
    return json.dumps(data, default=str, skipkeys=True).encode()
