"""Flows that somebody damaged: values of other types, names, cycles, duplicates, deep nesting."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random

_DEEP: Final = "@deep"
JUNK: Final[list[Any]] = [
    *(None, True, -1, 1e300, "", "s", "x" * 1000, [], {}, [[]], {"a": None}, "\x00"),
    *("..", "a/b", "\ud800", "${", "${vars.", "e@1", 2**70, _DEEP),
]
"""Values for places where others belong."""


def spoil(data: Any, rng: random.Random, junk: list[Any]) -> None:
    """Change one value within `data`; it may be gone, there twice, or that of another place."""
    while True:
        keys = list(data) if isinstance(data, dict) else [*range(len(data))]
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(data[key], dict | list) or rng.random() < 0.15:
            data[key] = copy.deepcopy(rng.choice(junk))
            return
        data = data[key]


def twist(data: Any, rng: random.Random) -> None:
    """Let a list have an item twice or not at all, a value a second place, and a name another one."""
    places = [one for one in _below(data) if one]
    place, other = rng.choice(places), rng.choice(places)
    key = rng.choice([*place] if isinstance(place, dict) else range(len(place)))
    match rng.randrange(4):
        case 0 if isinstance(place, list):
            place.append(copy.deepcopy(place[key]))
        case 1:
            del place[key]
        case 2 if isinstance(place, dict):
            place[rng.choice(["", "~", "end", "id", "\x00", "nodes"])] = place.pop(key)
        case _:
            from_ = rng.choice([*other] if isinstance(other, dict) else range(len(other)))
            place[key] = copy.deepcopy(other[from_])


def _below(data: Any) -> list[Any]:
    if not isinstance(data, dict | list):
        return []
    inner = data.values() if isinstance(data, dict) else data
    return [data, *(place for one in inner for place in _below(one))]


def spoilt(data: Any, rng: random.Random) -> bytes:
    """Return JSON of `data` with one to three changes."""
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            spoil(data, rng, JUNK)
        else:
            twist(data, rng)
    text = json.dumps(data)
    return text.replace(f'"{_DEEP}"', "[" * 1000 + "]" * 1000).encode()
