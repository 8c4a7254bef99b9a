"""Text that every assembly can keep: names, keys, ids and what people write beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors._kernel.agent.message import Message
from actors._kernel.basics import check_number
from actors._kernel.json_data import check_json
from actors._kernel.runtime.scheduler import RetryPolicy
from actors.errors import ContractError, InvalidTextError

MAX_NAME_BYTES: Final = 1_024
"""The longest name, key or id, in UTF-8: it may be part of an index, whose rows have 2,704 bytes."""
MAX_TEXT_BYTES: Final = 64 * 1024
"""The longest text that a person writes beside something: a reason, a comment."""
MAX_MESSAGE_KEY_BYTES: Final = 2_500
"""Target, sender and id of a message together: they are one row of an index."""


def check_name_of(what: str, value: object) -> None:
    """Check that this is text that can be a name, a key or an id.

    Raises:
        InvalidTextError: It is no text, too long, or has characters that no database takes.
    """
    _check(what, value, MAX_NAME_BYTES, "use a shorter one, for example a hash of it")


def check_text_of(what: str, value: object, *, limit_bytes: int = MAX_TEXT_BYTES) -> None:
    """Check that this is text that can be kept beside something.

    Raises:
        InvalidTextError: As for `check_name_of`.
    """
    _check(what, value, limit_bytes, "shorten it, or keep it in a store of yours")


def check_file_key(key: str) -> None:
    """Check that this can be the key of a file: a relative path of 1 to 1,024 bytes.

    Raises:
        InvalidTextError: No store takes it as text.
        ContractError: It is empty, begins with ``/``, or has a part ``.`` or ``..``.
    """
    check_name_of("key of a file", key)
    if not key or key.startswith("/") or not {".", ".."}.isdisjoint(key.split("/")):
        msg = f"{key!r} is no key of a file: give a relative path without '.' and '..', for example a/b.txt"
        raise ContractError(msg)


def is_name(value: object) -> bool:
    """Return True if the value can be the name, key or id of anything."""
    return _problem(value, MAX_NAME_BYTES, "") is None


def check_message(message: Message) -> None:
    """Check that a message can be kept and sent.

    Raises:
        InvalidTextError: One of its texts cannot.
        NotSerializableError: Its payload is not JSON data.
    """
    target = str(message.target)
    check_json(message.payload, where=f"message to {target}")
    check_name_of("id of a message", message.id)
    for name in ("sender", "reply_to", "correlation_id", "causation_id"):
        if (value := getattr(message, name)) is not None:
            # A sender holds the name of an agent, which is a little longer than a name.
            (check_text_of if name == "sender" else check_name_of)(f"{name} of a message", value)
    check_metadata_texts(message.metadata)
    size = sum(len(part.encode()) for part in (target, message.sender or "", message.id))
    if size > MAX_MESSAGE_KEY_BYTES:
        problem = f"has {size} bytes with target and sender, more than {MAX_MESSAGE_KEY_BYTES}"
        raise InvalidTextError("id of a message", f"{problem}: use a shorter one")


def check_metadata_texts(metadata: Mapping[str, str]) -> None:
    """Check that these texts can go with a message.

    Raises:
        InvalidTextError: One of them cannot.
    """
    for key, value in metadata.items():
        check_name_of("key of a message's metadata", key)
        check_text_of(f"metadata {key!r} of a message", value)


def check_policy(policy: RetryPolicy) -> None:
    """Check that every assembly can keep this retry policy.

    Raises:
        ContractError: A text or a number cannot be kept.
    """
    check_number("max_retries", policy.max_retries)
    for name in policy.non_retryable:
        check_name_of("error class in non_retryable", name)


def _check(what: str, value: object, limit: int, remedy: str) -> None:
    problem = _problem(value, limit, remedy)
    if problem is not None:
        raise InvalidTextError(what, problem)


def _problem(value: object, limit: int, remedy: str) -> str | None:
    if not isinstance(value, str):
        return f"has to be text, not {type(value).__name__}"
    if (index := value.find("\x00")) >= 0:
        return f"has a NUL at {index}: no database takes one, leave it out"
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as exc:
        return f"has half a surrogate pair at {exc.start}: it is no Unicode text, decode it anew"
    return f"has {size} bytes, more than {limit}: {remedy}" if size > limit else None
