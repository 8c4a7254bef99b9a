"""Values, errors and ids as data."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import from_json, to_json
from typing_extensions import override

import actors.errors
from actors._kernel.json import as_json_data, canonical_json, recordable
from actors._kernel.json_data import MAX_DIGITS
from actors._kernel.runtime.effects import Effect
from actors._kernel.runtime.ids import AgentId, RunId, partition_hash, run_id_of_child, token
from actors._kernel.workflow.durable import durable_copy
from actors.errors import ActorsError, NotSerializableError, RetryAfter

JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.item(74)
@given(JSON)
def test_a_recorded_value_is_the_value_with_its_types_and_key_order(value: Any) -> None:
    """What replay returns is equal to what was returned live, down to types and order of keys."""
    stored = json.loads(json.dumps(recordable(value, where="here"), ensure_ascii=False))

    assert repr(stored) == repr(recordable(value, where="here"))


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, math.nan, math.inf, b"x", {"a": {1}}, "\x00", "\ud800", dt.date(2026, 1, 1)],
)
def test_what_json_has_no_word_for_is_refused_with_the_place(value: Any) -> None:
    """Nothing is guessed: dates, bytes, sets, NaN, other keys than text and NUL are refused."""
    with pytest.raises(NotSerializableError, match="step 'x'"):
        recordable([value], where="step 'x'")


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_that_no_decoder_reads_is_refused(sign: int) -> None:
    """Alone, within others and as an argument, with the remedy; one of 4,300 digits is read."""
    longest = sign * (10**MAX_DIGITS - 1)
    assert recordable([longest], where="x") == [longest] == from_json(to_json([longest]))
    for value in (longest + sign, {"n": (longest + sign,)}):
        for refuse in (
            lambda value: recordable(value, where="step 'x'"),
            lambda value: durable_copy(value, "vars"),
            canonical_json,
        ):
            with pytest.raises(NotSerializableError, match=r"more than 4,300 digits: .* hex\(\)"):
                refuse(value)


class _Colour(StrEnum):
    RED = "red"


class _Person(BaseModel):
    name: str
    born: dt.date = dt.date(2000, 1, 1)
    photo: bytes = b""


@dataclass
class _Point:
    x: object


class _Mute:
    @override
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("a\x00b\ud800c \ud83d\ude00", "a\ufffdb\ufffdc \U0001f600"),
        ([math.nan, math.inf, Fraction(1, 2)], ["nan", "inf", 0.5]),
        (b"text\x00", "text\ufffd"),
        (b"\xff", "/w=="),
        ([10**4_299, -(10**4_300)], [10**4_299, hex(-(10**4_300))]),
        (
            {1: 1, None: 2, False: 3, _Colour.RED: 4, (1, 2): 5},
            {"1": 1, "null": 2, "false": 3, "red": 4, "[1,2]": 5},
        ),
        (
            [_Colour.RED, dt.timedelta(1), Decimal("1.10"), UUID(int=1)],
            ["red", "P1D", "1.10", str(UUID(int=1))],
        ),
        (_Person(name="A"), {"name": "A", "born": "2000-01-01", "photo": ""}),
        (
            [_Person(name="\ud800", photo=b"\xff")],
            [{"name": "\ufffd", "born": "2000-01-01", "photo": "/w=="}],
        ),
        (_Point(_Point({1})), {"x": {"x": [1]}}),
        (deque([range(2), {}.keys(), map(str, [1])]), [[0, 1], [], ["1"]]),
        (_Mute(), "(_Mute without a text)"),
        (int, "<class 'int'>"),
    ],
)
def test_any_value_can_be_made_json_data(value: Any, data: Any) -> None:
    """Each type becomes what a reader expects; text is cleaned, also within models."""
    assert as_json_data(value) == data


def test_json_data_stays_what_it_is() -> None:
    """It is not copied."""
    value = {"a": [1, 2.5, None, "\u2028"]}

    assert as_json_data(value) is value


def test_a_value_without_an_end_becomes_json_data_with_one() -> None:
    """One within itself, one that is nested too deep, and an iterator that never ends."""
    cycle: list[Any] = []
    cycle.append(cycle)
    point = _Point(None)
    point.x = point
    deep: Any = {1}
    for _ in range(200):
        deep = [deep]

    for value in (cycle, point, deep, count()):
        assert recordable([as_json_data(value)], where="x")


def test_deep_nesting_is_refused() -> None:
    """Deeper than 64 is refused before it can hurt."""
    value: Any = []
    for _ in range(100):
        value = [value]
    with pytest.raises(NotSerializableError, match="nested deeper"):
        recordable(value, where="x")


@pytest.mark.item(192)
def test_an_effect_id_does_not_depend_on_key_order_or_the_process() -> None:
    """SHA-256 of canonical JSON: the same for any order of keys and any PYTHONHASHSEED."""
    effect_id = Effect.make_id(RunId("r"), "4.1", "step", {"a": 1, "b": [2]})
    code = (
        "from actors._kernel.runtime.effects import Effect;"
        "print(Effect.make_id('r', '4.1', 'step', {'b': [2], 'a': 1}))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )

    assert other.stdout.strip() == effect_id
    assert len(effect_id) == 64


@given(st.lists(JSON, min_size=4, max_size=4, unique_by=canonical_json))
def test_another_run_position_kind_or_argument_is_another_effect(args: list[Any]) -> None:
    """No two different effects share an id."""
    ids = {
        Effect.make_id(RunId(run), position, kind, arg)
        for run in "ab"
        for position in ("1", "1.0")
        for kind in ("step", "tool")
        for arg in args
    }

    assert len(ids) == 2 * 2 * 2 * 4


def test_errors_survive_pickling() -> None:
    """Every error class with facts builds its message from them, also in another process."""
    samples: list[ActorsError] = [
        actors.errors.LeaseLostError("s", "h", 3),
        actors.errors.ConcurrentAppendError("r", 1, 2),
        actors.errors.OutOfOrderError("r", -1, -1),
        actors.errors.NonDeterminismError("4", "a", "b"),
        RetryAfter(1.5),
    ]

    assert [str(pickle.loads(pickle.dumps(e))) for e in samples] == [str(e) for e in samples]


@pytest.mark.item(212)
@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
)
def test_agent_ids_round_trip_as_text(type_: str, key: str, tenant: str) -> None:
    """`parse(str(id))` is the id, whatever the key contains."""
    agent = AgentId(type_, key, tenant)

    assert AgentId.parse(str(agent)) == agent
    assert 0 <= partition_hash(agent) < 2**32
    assert token(key).isascii()


def test_derived_ids_are_the_same_every_time() -> None:
    """A child's id is a function of its cause."""
    assert run_id_of_child(RunId("r"), "4") == run_id_of_child(RunId("r"), "4")
    assert run_id_of_child(RunId("r"), "4") != run_id_of_child(RunId("r"), "4.0")
