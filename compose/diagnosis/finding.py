"""A finding of a check, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, TypeAlias

from actors.kernel.json import JsonValue

Level: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding of a check.

    Attributes:
        check: What it is about.
        level: ``wrong`` needs an operator's action, ``note`` may need one; `remedy` says how.
        found: The facts in words.
        data: The same for programs.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""
    data: dict[str, JsonValue]


def judge(
    check: str,
    found: str,
    data: dict[str, JsonValue],
    *,
    wrong: bool = False,
    note: bool = False,
    remedy: str = "",
) -> Finding:
    """Return a finding that is wrong, else a note, else ok; where all is well it has no remedy."""
    level: Level = "wrong" if wrong else "note" if note else "ok"
    told = "" if level == "ok" else remedy
    return Finding(check=check, level=level, found=found, remedy=told, data=data)


def away(check: str, where: str, problem: object, *, remedy: str) -> Finding:
    """Return that a server, or another store, does not answer."""
    found = f"{where} cannot be used: {problem}"
    return judge(check, found, {"reachable": False}, wrong=True, remedy=remedy)


def is_this_machine(host: str) -> bool:
    """Return True if a server by this name or address is reached over no network."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
