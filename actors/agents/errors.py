"""The errors of ready-made agents."""

from __future__ import annotations

from typing import ClassVar

from actors.errors import BudgetExhaustedError, Facts


class TurnsExhaustedError(Facts, BudgetExhaustedError):
    """The model used up its turns and still called tools. No retry follows, and messages count as handled.

    Attributes:
        turns: Number of model calls.
        answer: The last text that the model gave. Empty: it gave none.
    """

    status: ClassVar[str] = "turns_exhausted"
    text = (
        "the model used up its {turns} turns and still called tools; raise max_turns, or say in the agent's"
        " instructions when to stop. Its last answer: {answer!r}"
    )
    turns: int
    answer: str
