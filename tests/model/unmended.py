"""Mistakes that the programs find and that are not mended so far. Empty in what is released."""

from __future__ import annotations

from typing import Final

NOT_MENDED_YET: Final = frozenset({"limits", "hints", "circles", "operators", "clocks"})
"""Names of properties in `tests/properties/test_troubles.py`."""
