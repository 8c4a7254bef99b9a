"""Limits of what is sent: hosts refuse what is beyond them, and `ActorClient` does before it sends."""

from __future__ import annotations

import re
from typing import Final

MAX_BODY_BYTES: Final = 256 * 1024
"""Of a message to an agent; hosts make a dead letter of a larger one."""
ENVELOPE_BYTES: Final = 32 * 1024
"""What a host's mail has beside its payload: names, ids, trace context."""
MAX_MAIL_BYTES: Final = MAX_BODY_BYTES + ENVELOPE_BYTES
"""Of the body of a message that a host sends, whose payload has `MAX_BODY_BYTES` as JSON at most."""
NEEDED_PAYLOAD_BYTES: Final = 512 * 1024
"""What a server has to take as one message (``max_payload``), headers included: any that we send fits."""
MAX_ID_BYTES: Final = 256
TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
"""What can be shown in one line."""
