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
    containers = [c for c in _below(data) if c]
    container, source = rng.choice(containers), rng.choice(containers)
    key = rng.choice([*container] if isinstance(container, dict) else range(len(container)))
    match rng.randrange(4):
        case 0 if isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        case 1:
            del container[key]
        case 2 if isinstance(container, dict):
            container[rng.choice(["", "~", "end", "id", "\x00", "nodes"])] = container.pop(key)
        case _:
            from_ = rng.choice([*source] if isinstance(source, dict) else range(len(source)))
            container[key] = copy.deepcopy(source[from_])


def _below(data: Any) -> list[Any]:
    if not isinstance(data, dict | list):
        return []
    inner = data.values() if isinstance(data, dict) else data
    return [data, *(container for value in inner for container in _below(value))]


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
