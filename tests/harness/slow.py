"""How much time a test run has: for what takes minutes, and on a busy machine."""

from __future__ import annotations

import os
from typing import Final

IS_SLOW: Final = bool(os.environ.get("CALLBOARD_TEST_SLOW"))
"""Whether it also takes what takes minutes."""

BUSY_S: Final = 10.0
"""What a busy machine may add to a time that a test has a limit for."""
