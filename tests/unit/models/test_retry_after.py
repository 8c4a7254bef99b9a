"""The pause that a provider asks for, in each form of its headers."""

from __future__ import annotations

import pytest

from compose._models.provider_errors import pause_of

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry-after": "2"}, 2),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "700", "retry-after": "1"}, 0.7),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": DATE}, 30),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 +0000", "date": DATE}, 30),
        ({"retry-after": "Wed, 31 Dec 2025 00:00:00 GMT", "date": DATE}, 0),
        ({"retry-after": "Wed, 31 Dec 2025 00:00:00 GMT"}, 0),
        ({"x-ratelimit-reset-requests": "1s"}, 1),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        (
            {
                "x-ratelimit-reset-requests": "1h2m",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "7.66s",
                "x-ratelimit-remaining-tokens": "12",
            },
            3_720,
        ),
        ({"retry-after": "3", "x-ratelimit-reset-tokens": "9s"}, 3),
        ({"retry-after": "soon", "x-ratelimit-reset-tokens": "9s"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "inf"}, None),
        ({"x-ratelimit-reset-tokens": "later"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_pause_is_read_in_each_form(headers: dict[str, str], pause_s: float | None) -> None:
    """A date is compared with that of the response. A text that names no time is no pause."""
    assert pause_of(headers) == pytest.approx(pause_s)
