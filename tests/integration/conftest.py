"""What all tests of this folder have: one loop, whose connections to PostgreSQL last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.lasting import lasting_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run all tests of this folder in one loop: see `tests/harness/lasting.py`."""
    return {"lasting": lasting_loop}
