"""Findings of checks, with remedies."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, TypeAlias

from actors._kernel.json import JsonValue

Level: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding of a check.

    Attributes:
        check: Name of the check.
        level: ``wrong`` needs an operator's action, and ``note`` may need one.
        found: The facts as a text.
        remedy: The action; empty if the level is ``ok``.
        data: The facts as JSON data.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""
    data: dict[str, JsonValue]


def judge(
    check: str,
    text: str,
    data: dict[str, JsonValue],
    *,
    wrong: bool = False,
    note: bool = False,
    remedy: str = "",
) -> Finding:
    """Return a finding with the level ``wrong`` or ``note`` if asked for, else ``ok`` without a remedy."""
    level: Level = "wrong" if wrong else "note" if note else "ok"
    shown_remedy = "" if level == "ok" else remedy
    return Finding(check=check, level=level, found=text, remedy=shown_remedy, data=data)


def away(check: str, where: str, problem: object, *, remedy: str) -> Finding:
    """Return the finding that a server or another store does not answer."""
    text = f"{where} cannot be used: {problem}"
    return judge(check, text, {"reachable": False}, wrong=True, remedy=remedy)


def is_this_machine(host: str) -> bool:
    """Return True if the name or address is that of this machine, so that no network is used."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
