"""Limits of what others send: hosts refuse what is beyond them, and `ActorClient` does before it sends."""

from __future__ import annotations

import re
from typing import Final

MAX_BODY_BYTES: Final = 256 * 1024
"""Of a message to an agent; hosts make a dead letter of a larger one."""
MAX_ID_BYTES: Final = 256
TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
"""What can be shown in one line."""
