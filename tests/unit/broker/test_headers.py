"""Header blocks and values."""

from __future__ import annotations

import pytest

from broker._wire.headers import header_text, header_value, parse_headers


@pytest.mark.parametrize(
    "text", ["", "agent:desk/1", " a ", "é\u2028", "50%", "a\r\nNats-Rollup: all", "%41", "a:b c"]
)
def test_any_text_survives_as_a_header_value(text: str) -> None:
    """Values are printable ASCII without spaces, and come back as they were."""
    value = header_value(text)

    assert value.isascii()
    assert not any(character.isspace() for character in value)
    assert header_text(value) == text


def test_a_block_is_parsed_by_lines_that_end_in_crlf() -> None:
    """Form feeds and single line feeds, which the server and clients put in, end nothing."""
    raw = (
        b"NATS/1.0\r\nNats-Stream-Source: E 1 a\x0cb c\x0cd s\r\nA:x\ny\r\nb:\t z \r\nnone\r\n\r\n"
    )

    assert parse_headers(raw) == {
        "Nats-Stream-Source": "E 1 a\x0cb c\x0cd s",
        "A": "x\ny",
        "b": "z",
    }


def test_of_a_name_that_comes_twice_the_last_counts() -> None:
    """The server appends its own headers behind those of the publisher."""
    assert parse_headers(b"NATS/1.0\r\nA: 1\r\na: 2\r\nA: 3\r\n\r\n") == {"A": "3", "a": "2"}


@pytest.mark.parametrize("raw", [b"", b"NATS/1.0", b"NATS/1.0 404\r\n\r\n", b"\xff\xfe\r\n:\r\n"])
def test_a_strange_block_is_parsed_without_an_error(raw: bytes) -> None:
    """Bytes of outsiders never stop the reader."""
    assert "A" not in parse_headers(raw)


def test_status_blocks_keep_their_headers() -> None:
    """Heartbeats carry a status line and headers."""
    raw = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n"
    assert parse_headers(raw) == {"Nats-Last-Consumer": "7"}


def test_bytes_that_are_no_text_become_a_mark() -> None:
    """A value in another encoding is still a value."""
    assert parse_headers(b"NATS/1.0\r\nA: b\xffd\r\n\r\n") == {"A": "b\ufffdd"}
