"""Whether this run also takes what takes minutes."""

from __future__ import annotations

import os
from typing import Final

IS_SLOW: Final = bool(os.environ.get("CALLBOARD_TEST_SLOW"))
