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
        leftovers = Counter(type(obj).__qualname__ for obj in gc.garbage if is_ours(obj))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not leftovers, leftovers


def is_ours(obj: object) -> bool:
    """Return whether it is of a class of the product."""
    return type(obj).__module__.startswith(OURS)
