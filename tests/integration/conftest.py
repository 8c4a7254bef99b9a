"""What all tests of this folder have: one loop, whose connections to PostgreSQL last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.harness.lasting import lasting_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

_ABOUT_PLANS = frozenset(("book", "counted"))
"""What a test asks for that looks at how statements are planned: a kept connection has its plans already."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run all tests but those about plans in one loop: see `tests/harness/lasting.py`."""
    del config
    if _ABOUT_PLANS & set(getattr(item, "fixturenames", ())):
        return {"new": asyncio.new_event_loop}
    return {"lasting": lasting_loop}
