"""The fields of requests of external clients."""

from __future__ import annotations

import pytest

from broker._gateway.handlers import Fields
from broker._gateway.responses import RequestError


def test_null_for_an_optional_field_is_no_field() -> None:
    """Clients of many languages write each field of their classes."""
    fields = Fields({"timeout": None, "from_seq": None, "mode": None, "metadata": None})

    assert fields.take("timeout", 30.0) == 30.0
    assert fields.number("from_seq", 0) == 0
    assert fields.text("mode", "eager") == "eager"
    assert fields.metadata("metadata") == {}
    fields.refuse_others()


def test_null_for_a_field_that_has_to_be_there_is_refused() -> None:
    """It names no run; as a payload it is a value."""
    fields = Fields({"run": None, "payload": None})

    with pytest.raises(RequestError, match="'run' is null"):
        fields.run()
    assert fields.take("payload") is None
