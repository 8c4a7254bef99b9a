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
_ABOUT_CONNECTIONS = frozenset(("test_builtin_types",))
"""Files about what a connection asks for when it is new."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run all tests but those about plans or connections in one loop: see `tests/harness/lasting.py`."""
    del config
    is_about_plans = _ABOUT_PLANS & set(getattr(item, "fixturenames", ()))
    if is_about_plans or item.path.stem in _ABOUT_CONNECTIONS:
        return {"new": asyncio.new_event_loop}
    return {"lasting": lasting_loop}
