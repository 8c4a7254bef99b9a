"""The part of a run's events that a client was sent before."""

from __future__ import annotations

from ag_ui.core import (
    BaseEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from compose._web.agui.events import RunTree
from compose._web.agui.stream import Gate
from tests.unit.web.agui.session_events import ROOT, answer, approval


def call(id_: str, message: str) -> list[BaseEvent]:
    """The events of a call of a tool."""
    return [
        ToolCallStartEvent(tool_call_id=id_, tool_call_name="x", parent_message_id=message),
        ToolCallArgsEvent(tool_call_id=id_, delta="{}"),
        ToolCallEndEvent(tool_call_id=id_),
    ]


def test_what_the_client_has_is_left_out_as_a_whole() -> None:
    """A call goes with its message: its arguments would have no beginning."""
    gate = Gate(messages=frozenset({"m1"}), results=frozenset({"c1"}))
    result = ToolCallResultEvent(message_id="x", tool_call_id="c1", content="")
    old = [*call("c1", "m1"), result, TextMessageStartEvent(message_id="m1")]
    new = [*call("c2", "m2"), TextMessageStartEvent(message_id="m2")]

    assert not any(gate.lets_in(event) for event in old)
    assert all(gate.lets_in(event) for event in new)


def test_it_ends_when_all_that_was_answered_was_asked() -> None:
    """Or with the event of a cursor."""
    tree, gate = RunTree(ROOT), Gate(answered_ids=frozenset({"a1", "c1"}))
    first, second = answer("", ("c1", "pick", {})), approval("a1", event_id="1:2")
    tree.of(first)
    assert not gate.is_behind(first, tree)
    tree.of(second)
    assert gate.is_behind(second, tree)
    assert Gate().is_behind(None, tree)
    assert not Gate(cursor="1:2").is_behind(None, tree)
    assert not Gate(cursor="1:2").is_behind(first, tree)
    assert Gate(cursor="1:2").is_behind(second, tree)
