"""Bodies and headers of external clients, read within limits."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Final

import msgpack
from pydantic_core import from_json

from actors._kernel.json import JsonValue, check_json
from actors._kernel.runtime.ids import AgentId
from actors._kernel.tracing import TRACE_PARENT, caused_by
from actors.errors import NotSerializableError
from broker._errors import BadMessageError
from broker._wire import headers as wire_headers
from broker._wire.headers import MAX_BODY_BYTES, MAX_ID_BYTES, TEXT, header_text

_TRACE_STATE: Final = re.compile(r"[ -~]{1,512}")
_MAX_ATTRIBUTE: Final = 1024
_CONTENT_TYPES: Final = (wire_headers.CONTENT_TYPE, "content-type", "ce-datacontenttype")
_CLOUD_EVENT: Final = ("ce-id", "ce-source", "ce-type", "ce-subject", "ce-time")


def check_size(size: int, limit: int = MAX_BODY_BYTES) -> None:
    """Check that a body may have this many bytes.

    Raises:
        BadMessageError: They are too many.
    """
    if size > limit:
        raise BadMessageError(
            f"the body has {size} bytes, {limit} are the limit: put the data into a store of yours "
            "and send its key or URL"
        )


def parse_body(data: bytes, headers: Mapping[str, str], limit: int = MAX_BODY_BYTES) -> JsonValue:
    """Return a body as Python values; whether they are JSON data is not checked here.

    Raises:
        BadMessageError: It is too large, or not what its media type says.
    """
    check_size(len(data), limit)
    media_type = next(filter(None, map(headers.get, _CONTENT_TYPES)), wire_headers.JSON)
    if media_type not in (wire_headers.MSGPACK, wire_headers.JSON):
        media_type = media_type.partition(";")[0].strip().lower()
    try:
        if media_type == wire_headers.MSGPACK:
            return _unpack(data)
        if media_type == wire_headers.JSON:
            # Tools of Windows write the mark.
            value: JsonValue = from_json(data.removeprefix(BOM_UTF8), allow_inf_nan=False)
            return value
    except ValueError as exc:
        detail = str(exc) or type(exc).__name__
        raise BadMessageError(f"the body is no {media_type}: {detail}") from exc
    raise BadMessageError(
        f"{wire_headers.CONTENT_TYPE} is {media_type!r}, not {wire_headers.JSON} or "
        f"{wire_headers.MSGPACK}"
    )


def _unpack(data: bytes) -> JsonValue:
    size = len(data)
    value: JsonValue = msgpack.unpackb(
        data,
        strict_map_key=True,
        max_str_len=size,
        max_array_len=size,
        max_map_len=size,
        max_bin_len=0,
        max_ext_len=0,
    )
    return value


def json_data(value: JsonValue) -> JsonValue:
    """Return `value` if it could be recorded: no NUL, no NaN, not too deep.

    Raises:
        BadMessageError: It could not.
    """
    try:
        check_json(value, where="payload")
    except NotSerializableError as exc:
        problem = f"holds a {exc.type_name}: {exc.problem or 'that is not JSON data'}"
        raise BadMessageError(f"the payload {problem}") from exc
    return value


def claimed_target(headers: Mapping[str, str]) -> AgentId | None:
    """Return the agent that header Actor-Target names, if it names one."""
    target = headers.get(wire_headers.TARGET)
    return None if target is None else AgentId.parse(header_text(target))


def checked_id(text: str) -> str:
    """Return `text` if it can be the id of a message.

    Raises:
        BadMessageError: It cannot.
    """
    if TEXT.fullmatch(text) is None or len(text.encode()) > MAX_ID_BYTES:
        raise BadMessageError(f"a message id is 1 to {MAX_ID_BYTES} bytes of printable text")
    return text


def external_id(text: str) -> str:
    """Return `text` if it can be the id that an external client gave.

    Raises:
        BadMessageError: It cannot.
    """
    if "\ufffd" in text:  # what is no UTF-8 reads like this, and two ids would be one
        raise BadMessageError("the message id is no UTF-8")
    return checked_id(text)


def trace_context(source: Mapping[str, str]) -> dict[str, str]:
    """Return the W3C trace context in `source`, without what is not well-formed."""
    parent = caused_by(source)
    if parent is None:
        return {}
    state = source.get(wire_headers.TRACE_STATE, "")
    is_state = _TRACE_STATE.fullmatch(state) is not None
    return {TRACE_PARENT: parent} | ({wire_headers.TRACE_STATE: state} if is_state else {})


def metadata_from_outside(headers: Mapping[str, str]) -> dict[str, str]:
    """Return attributes of a CloudEvent and the trace context, cut to a sane length."""
    metadata = trace_context(headers)
    for name in _CLOUD_EVENT:
        value = headers.get(name)
        if value and TEXT.fullmatch(value):
            metadata[name] = value[:_MAX_ATTRIBUTE]
    return metadata
