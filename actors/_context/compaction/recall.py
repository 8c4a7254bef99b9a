"""The strategy that adds old facts from a store to the window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from actors._context.calls import attempted
from actors._context.turns import RECALLED, data_message, is_derived, is_recalled
from actors._kernel.agent.message import ChatMessage
from actors.errors import ContractError

Recall: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Function that returns the texts that are most relevant to a query, the best first."""

NOTE: Final = "Facts recalled from memory that may help with the next message."


class RecallStrategy:
    """Strategy that adds texts that a store finds for the newest user turn, as data in a user turn before it.

    Other strategies drop old turns. This strategy brings old facts back. Put it before strategies with a
    ceiling, so that they count the recalled texts. If the store fails, the window has no recalled texts, and a
    warning is logged.

    Args:
        recall: The function that finds texts, for example in a `VectorStore`. The query is the turn's text.
        limit: Maximum number of texts.
        max_chars: Maximum length of all texts together, in characters. A text that does not fit is left out.
        timeout_s: Seconds that `recall` may take, or None for no limit.

    Raises:
        ContractError: `limit` or `max_chars` is below 1.
    """

    limit: int
    max_chars: int
    timeout_s: float | None

    def __init__(
        self,
        recall: Recall,
        *,
        limit: int = 5,
        max_chars: int = 4_000,
        timeout_s: float | None = 10.0,
    ) -> None:
        if min(limit, max_chars) < 1:
            msg = f"recalled texts need limits from 1: {limit=}, {max_chars=}"
            raise ContractError(msg)
        self.limit, self.max_chars, self.timeout_s = limit, max_chars, timeout_s
        self._recall = recall

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the turns with recalled texts before the last question, unless they are there already."""
        question_indexes = (
            index
            for index in reversed(range(len(raw_history)))
            if (turn := raw_history[index]).role == "user" and turn.text and not is_derived(turn)
        )
        question_index = next(question_indexes, None)
        if question_index is None or (
            question_index > 0 and is_recalled(raw_history[question_index - 1])
        ):
            return raw_history
        query = raw_history[question_index].text
        texts = await attempted(
            lambda: self._find_texts(query), what="recall", timeout_s=self.timeout_s
        )
        if not texts:
            return raw_history
        body = "\n".join(f"- {text}" for text in texts)
        recalled_turn = data_message("recalled", body, note=NOTE, metadata={RECALLED: "1"})
        return [*raw_history[:question_index], recalled_turn, *raw_history[question_index:]]

    async def _find_texts(self, query: str) -> list[str]:
        texts, remaining_chars = list[str](), self.max_chars
        for text in dict.fromkeys(await self._recall(query)):
            if text and len(text) <= remaining_chars and len(texts) < self.limit:
                texts.append(text)
                remaining_chars -= len(text)
        return texts
