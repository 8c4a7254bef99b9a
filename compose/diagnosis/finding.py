"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue

Level: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What it is about.
        level: ``wrong`` needs somebody to act, ``note`` may; `remedy` says how.
        found: The facts in words.
        data: The same for programs.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""
    data: dict[str, JsonValue]
