"""Places where a test can let this process die or freeze. Nothing of it exists in production.

``CALLBOARD_FAULT=commit:17:after`` kills the process right after the 17th round trip of `commit`;
``before`` kills it right before, ``freeze`` stops it (SIGSTOP) right before. Several are separated
by commas. Points: ``append``, ``commit``, ``submit``, ``ingest``, ``publish``,
``post``, ``expand``, ``fire``.
"""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal

from actors.errors import ContractError

VARIABLE: Final = "CALLBOARD_FAULT"
_MOMENTS: Final = ("before", "after", "freeze")


class Fault:
    """An armed fault point. Each round trip at the point is a `with` block of this object."""

    __slots__ = ("_hits", "_moment", "_nth", "point")

    def __init__(self, point: str, nth: int, moment: Literal["before", "after", "freeze"]) -> None:
        self.point, self._nth, self._moment = point, nth, moment
        self._hits = 0

    def __enter__(self) -> None:
        """Count a hit; die or freeze if it is the one."""
        self._hits += 1
        if self._hits == self._nth and self._moment != "after":
            name = "SIGSTOP" if self._moment == "freeze" else "SIGKILL"
            os.kill(os.getpid(), getattr(signal, name))

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Die if the hit counted last is the one, unless the round trip failed."""
        if self._hits == self._nth and self._moment == "after" and error is None:
            os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str) -> dict[str, Fault]:
    """Return the armed points of ``point:n:moment[,…]``, by name.

    Raises:
        ContractError: The text is not of this form.
    """
    faults: dict[str, Fault] = {}
    for part in filter(None, text.split(",")):
        point, _, rest = part.partition(":")
        count, _, moment = rest.partition(":")
        if not point or not count.isdecimal() or int(count) < 1 or moment not in _MOMENTS:
            msg = f"{VARIABLE}={text!r}: write point:n:moment, moment one of {', '.join(_MOMENTS)}"
            raise ContractError(msg)
        faults[point] = Fault(point, int(count), moment)  # type: ignore[arg-type]
    return faults


_ARMED: Final = parse(os.environ.get(VARIABLE, ""))
_NOTHING: Final = nullcontext()


def armed(point: str) -> AbstractContextManager[None]:
    """Return the point's fault, or nothing, around each round trip. Asked once, when a store is made."""
    return _ARMED.get(point, _NOTHING)
