"""Closing of the resources of agents: models, tools and hooks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from actors.kernel.agent.agent import Agent


def resources_of(modes: Mapping[str, Agent]) -> list[object]:
    """Return the models, tools and hooks of agents that can be closed, each once."""
    found: dict[int, object] = {}
    for agent in modes.values():
        parts: list[Any] = [getattr(agent, "model", None), getattr(agent, "embedder", None)]
        for name in ("tools", "hooks", "middleware"):
            parts += getattr(agent, name, None) or ()
        found |= {id(part): part for part in parts if _closer_of(part) is not None}
    return list(found.values())


def _closer_of(resource: object) -> Any:
    return getattr(resource, "aclose", None) or getattr(resource, "close", None)


async def close(resource: object) -> None:
    """Close a resource with its `aclose`, else with its `close`.

    Both may be coroutine functions or plain ones.
    """
    closer = _closer_of(resource)
    if closer is not None and inspect.isawaitable(done := closer()):
        await done
