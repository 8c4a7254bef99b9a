"""Objects of the product that only the garbage collector frees."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS: Final = ("actors.", "broker.", "compose.", "persistence.")


@contextmanager
def no_garbage() -> Iterator[None]:
    """Check that the block leaves no object of the product to the garbage collector.

    One cycle of references keeps all that it refers to. A busy host then spends a third of its time in the
    collector.
    """
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(one).__qualname__ for one in gc.garbage if is_ours(one))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left, left


def is_ours(one: object) -> bool:
    """Return whether it is of a class of the product."""
    return type(one).__module__.startswith(OURS)
