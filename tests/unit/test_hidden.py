"""Values that neither traces nor events of sessions show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors._kernel.hidden import HIDDEN, MAX_DEPTH, HiddenNames


@pytest.mark.item(483)
@pytest.mark.parametrize("key", ["password", "X-Api-Key", "apikey", "refresh_token", "SECRET"])
def test_values_are_hidden_by_their_key(key: str) -> None:
    """Also in a text that is JSON as a whole; other texts, and what holds nothing to hide, stay as they are."""
    value = {"a": [{key: ["canary", {"b": "canary"}]}], "text": f"{key}: kept", "n": 1.5}
    text = json.dumps({"text": json.dumps(value), "odd": "[1,  2]"})
    hidden = {**value, "a": [{key: HIDDEN}]}

    assert HiddenNames().shown(value) == hidden
    assert json.loads(json.loads(HiddenNames().shown(text))["text"]) == hidden
    for plain_value in (f"{{{key}", "[1,  2]", '{"n":  1}', f'["{key}"]', None, 7, f' "{key}"'):
        assert HiddenNames().shown(plain_value) == plain_value


@pytest.mark.item(483)
def test_names_are_those_that_are_given() -> None:
    """However they are written; none hide nothing."""
    value = {"user": 1, "password": 2}
    assert HiddenNames(" U_SER ,,").shown(value) == {"user": HIDDEN, "password": 2}
    assert HiddenNames("").shown(value) == value


@pytest.mark.item(483)
def test_data_that_is_too_deep_is_not_shown() -> None:
    """It is no error; what is above is shown."""
    deep: Any = "canary"
    for _ in range(500):
        deep = [deep]
    view = HiddenNames().shown(deep)
    for _ in range(MAX_DEPTH):
        [view] = view
    assert view == HIDDEN
