"""What all tests of this folder have: one loop, whose connections to PostgreSQL last."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tests.harness.lasting import LastingLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping


@functools.cache
def _lasting_loop() -> LastingLoop:
    return LastingLoop()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests in a loop that outlives them: see `tests/harness/lasting.py`."""
    return {"lasting": _lasting_loop}
