"""How executions leave the memory of a host that stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.runtime.execution import Execution

EFFECT_LIMIT_S: Final = 2.0
"""How long a stop waits, behind its drain, for effects that must not happen twice."""
EFFECT_LOOK_S: Final = 0.02
"""Seconds between two looks at whether they have ended."""


async def hand_over(executions: Iterable[Execution]) -> None:
    """Let executions go on, by replay, where their shards go.

    An effect that must not happen twice has a moment more to come to its end: cut off it would be in
    doubt.
    """
    now = asyncio.get_running_loop().time
    ends_at, left = now() + EFFECT_LIMIT_S, list(executions)
    while left:
        doubtful = []
        for execution in left:
            if execution.has_unrepeatable_effect and now() < ends_at:
                doubtful.append(execution)
            else:
                execution.hand_over()
        if left := doubtful:
            await asyncio.sleep(EFFECT_LOOK_S)
