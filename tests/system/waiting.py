"""Waits for events in other processes, by polling: they send no notifications."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Final

from tests.system.agents import executed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import Runtime

PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.01


async def until(
    holds: Callable[[], bool | Awaitable[object]], what: str, *, limit_s: float = PATIENCE_S
) -> None:
    """Return once it holds; fail after a minute, or the test's limit."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = holds()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert time.monotonic() < deadline, f"it did not come to this: {what}"
        await asyncio.sleep(_POLL_S)


async def until_executing(ledger: Path, number: int) -> None:
    """Return once this step has started."""
    await until(lambda: number in {done for done, _ in executed(ledger)}, f"step {number}")


async def until_run(
    client: Runtime, run_id: RunId, holds: Callable[[RunRow], bool], what: str
) -> RunRow:
    """Return the run's row once the condition holds for it."""
    last: list[RunRow] = []

    async def look() -> bool:
        row = await client.store.reads.run(run_id)
        last[:] = [row] if row is not None else []
        return row is not None and holds(row)

    await until(look, what)
    return last[0]
