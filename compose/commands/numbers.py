"""Numbers that options take: one that cannot be kept is refused before anything happens."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter

from compose.commands.span import MOST_S

_INT32: Final = 2**31 - 1


def within(low: float, high: float, words: str) -> Parameter:
    """Return what refuses numbers outside of a range, also one of several, with `words` as remedy."""

    def check(_: object, value: float | list[float] | None) -> None:
        given = value if isinstance(value, list) else [value]
        if not all(one is None or low <= one <= high for one in given):  # NaN is in no range
            raise ValueError(words)

    return Parameter(validator=check)


Limit = Annotated[int, within(1, 1_000_000, "Give 1 or more, up to 1000000.")]
"""How many are shown at most."""
Seq = Annotated[int, within(0, _INT32, "Give the number of a log entry, 0 or more.")]
Count = Annotated[int, within(0, _INT32, "Give 0 or more.")]
Priority = Annotated[int, within(-_INT32, _INT32, "Give a number near 0.")]
Seconds = Annotated[float, within(0, MOST_S, "Give seconds, 0 or more.")]
LETTERS: Final = within(1, 2**63 - 1, "Give numbers that `callboard dlq list` shows.")
