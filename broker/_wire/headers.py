"""Header names and sizes of the wire, and header blocks parsed and written without surprises.

Values are ASCII: what is not is percent-encoded, because clients strip and split values at
characters that are legal in an agent's key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

MESSAGE_ID: Final = "Nats-Msg-Id"
STREAM_SOURCE: Final = "Nats-Stream-Source"
"""Set by the server on what it sourced from another stream: it came from outside."""

KIND: Final = "Actor-Kind"
SENDER: Final = "Actor-Sender"
TARGET: Final = "Actor-Target"
"""The addressed agent, percent-encoded, where the subject holds only a hash of it."""
SIZE: Final = "Actor-Size"
"""Bytes of a body that was too large to be sent; what is sent is its beginning."""
RUN: Final = "Actor-Run"
REASON: Final = "Actor-Reason"
"""The reason why a message became a dead letter."""
TIMEOUT: Final = "Actor-Timeout"
"""Header: seconds that the client waits for the answer."""
ON_CONFLICT: Final = "Actor-On-Conflict"
PRIORITY: Final = "Actor-Priority"
EVENT: Final = "Actor-Event"
STREAM: Final = "Actor-Stream"
"""Header of a beat: the name of the stream of events, which a reader needs to renew it by a request."""
ERROR_CODE: Final = "Nats-Service-Error-Code"
ERROR: Final = "Nats-Service-Error"
"""Header with the error's text. NATS micro services report a failed request by this header and the code."""
CONTENT_TYPE: Final = "Content-Type"
ACCEPT: Final = "Accept"
TRACE_STATE: Final = "tracestate"
"""W3C names; also the keys of `Message.metadata` from which and to which they pass."""

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"

_PLAIN: Final = re.compile(r"[!-$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


MAX_BODY_BYTES: Final = 256 * 1024
"""Largest body of a message to an agent; hosts make a dead letter of a larger one."""
ENVELOPE_BYTES: Final = 32 * 1024
"""The bytes of a host's message beside its payload: names, ids, trace context."""
MAX_MAIL_BYTES: Final = MAX_BODY_BYTES + ENVELOPE_BYTES
"""Largest body of a message that a host sends; its payload as JSON is at most `MAX_BODY_BYTES`."""
NEEDED_PAYLOAD_BYTES: Final = 512 * 1024
"""Least ``max_payload`` of a server, headers included: every message of ours fits."""
MAX_ID_BYTES: Final = 256
TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
"""Pattern of text that can be shown in one line."""


def header_value(text: str) -> str:
    """Return `text` as a header value: every byte but printable ASCII is ``%XX``, and so is ``%``."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE)


def header_text(value: str) -> str:
    """Return the text that `header_value` was given.

    Raises:
        UnicodeDecodeError: The encoded bytes are no UTF-8.
    """
    return unquote(value, errors="strict") if "%" in value else value


def block_bytes(headers: Mapping[str, str]) -> int:
    """Return how many bytes these headers have on the wire, at most: the server counts them too."""
    lines = sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
    return len("NATS/1.0\r\n\r\n") + lines


def parse_headers(raw: bytes) -> dict[str, str]:
    """Return the headers of a block ``NATS/1.0[ status]CRLF name: value CRLF … CRLF``.

    Names keep their case; of one that comes twice the last counts: the server appends its own.
    Bytes that are no UTF-8 become U+FFFD, lines without a colon are left out.
    """
    headers: dict[str, str] = {}
    for line in raw.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip(" \t")
    return headers
