"""Session events as AG-UI events: what a client is told, in which order, and how a stream ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from compose._web.agui.events import RunTree, ShownMessages
from tests.unit.web.agui.session_events import (
    CHILD,
    ROOT,
    answer,
    approval,
    check,
    dumped,
    piece,
    session_event,
)

if TYPE_CHECKING:
    from actors._sessions.events import SessionEvent

DONE = session_event("run_completed", {"output": "out"})
RESULT = {"status": "ok", "text": "sunny", "structured": {"sky": "blue"}}


def stream_of(tree: RunTree, *events: SessionEvent) -> list[dict[str, Any]]:
    """The whole stream of these events, checked."""
    agui_events = [agui_event for event in events for agui_event in tree.of(event)]
    lines = dumped([*agui_events, *tree.close(), tree.last_event("s", "r")])
    check(lines)
    return lines


def messages_of(*events: SessionEvent) -> list[dict[str, Any]]:
    """The messages that a client has in the end."""
    shown_messages = ShownMessages()
    stream_of(RunTree(ROOT, messages=shown_messages), *events)
    return dumped(shown_messages.messages)


def types(lines: list[dict[str, Any]]) -> list[str]:
    """The types of events."""
    return [line["type"] for line in lines]


def test_pieces_and_their_answer_are_one_message() -> None:
    """What the pieces have shown is not shown again; a reader who had none of them has the same message."""
    live = stream_of(RunTree(ROOT), piece("Hel"), piece("lo"), answer("Hello"), DONE)
    late = stream_of(RunTree(ROOT), answer("Hello"), DONE)

    id_ = f"{ROOT}:0"
    assert live[:4] == [
        {"type": "TEXT_MESSAGE_START", "messageId": id_, "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": id_, "delta": "Hel"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": id_, "delta": "lo"},
        {"type": "TEXT_MESSAGE_END", "messageId": id_},
    ]
    assert late[1] == {"type": "TEXT_MESSAGE_CONTENT", "messageId": id_, "delta": "Hello"}
    assert live[-1] == late[-1]
    assert live[-1]["outcome"] == {"type": "success"}
    assert live[-1]["result"] == "out"
    assert live[-1]["usage"] == [
        {
            "model": "m",
            "inputTokens": 5,
            "outputTokens": 3,
            "totalTokens": 8,
            "reasoningTokens": 1,
            "cachedInputTokens": 2,
        }
    ]


def test_a_missed_piece_comes_with_the_answer() -> None:
    """A reader who lost pieces has the whole text in the end."""
    lines = stream_of(RunTree(ROOT), piece("Hel"), answer("Hello"), DONE)

    assert "".join(line.get("delta", "") for line in lines) == "Hello"
    assert messages_of(piece("Hel"), answer("Hello"), DONE)[0]["content"] == "Hello"


def test_the_text_of_a_void_attempt_is_taken_back() -> None:
    """The protocol takes no piece back: a snapshot shows all messages but that one, and it begins anew."""
    snapshot = session_event("text_snapshot", {"text": "", "attempt": 2, "position": "0"})
    events = (piece("Gru"), snapshot, piece("Hi", attempt=2), answer("Hi"), DONE)
    lines = stream_of(RunTree(ROOT), *events)

    assert types(lines)[:4] == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "MESSAGES_SNAPSHOT",
    ]
    assert lines[3]["messages"] == []
    assert [message["content"] for message in messages_of(*events)] == ["Hi"]


def test_a_snapshot_in_the_middle_adds_what_is_missing() -> None:
    """Whoever joins in the middle of an answer has all of it, once."""
    whole = session_event("text_snapshot", {"text": "Hello", "attempt": 1, "position": "0"})
    lines = stream_of(RunTree(ROOT), piece("Hel"), whole, piece("!"), answer("Hello!"), DONE)

    assert [line["delta"] for line in lines if "delta" in line] == ["Hel", "lo", "!"]


def test_reasoning_ends_before_the_text() -> None:
    """Reasoning is a message of its own, in a span."""
    thought = session_event("reasoning_delta", {"text": "hm", "attempt": 1, "position": "0"})
    lines = stream_of(RunTree(ROOT), thought, piece("a"), answer("a"), DONE)

    assert types(lines)[:6] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
    ]


def test_a_call_is_told_by_the_answer_and_its_result_once() -> None:
    """The start of a tool, and the turn with its result, tell nothing new."""
    answer_event = answer("Let me look.", ("c1", "sky", {"at": "Ulm"}))
    block = {"type": "tool_result", "id": "c1", "name": "sky", "text": "sunny"}
    turn = session_event("message", {"role": "tool", "text": "", "content": [block]})
    lines = stream_of(
        RunTree(ROOT),
        answer_event,
        session_event("tool_started", {"name": "sky"}, tool_call_id="c1"),
        session_event(
            "tool_finished", {"name": "sky", "status": "ok", "result": RESULT}, tool_call_id="c1"
        ),
        turn,
        DONE,
    )

    assert lines[3:7] == [
        {
            "type": "TOOL_CALL_START",
            "toolCallId": "c1",
            "toolCallName": "sky",
            "parentMessageId": f"{ROOT}:0",
        },
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '{"at":"Ulm"}'},
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{ROOT}:0:c1",
            "toolCallId": "c1",
            "content": "sunny",
        },
    ]
    assert types(lines).count("TOOL_CALL_RESULT") == 1


def test_the_result_of_a_call_that_was_denied_is_in_its_turn() -> None:
    """Nothing was called, so that no event but the turn tells it."""
    block = {"type": "tool_result", "id": "c1", "name": "pay", "text": "bob denied it"}
    turn = session_event("message", {"role": "tool", "text": "", "content": [block]})
    lines = stream_of(RunTree(ROOT), answer("", ("c1", "pay", {})), turn, DONE)

    assert [line["content"] for line in lines if line["type"] == "TOOL_CALL_RESULT"] == [
        "bob denied it"
    ]


def test_calls_that_no_model_asked_for_have_ids_of_their_own() -> None:
    """An agent's code calls tools, too; arguments that are no JSON go as they are."""
    lines = stream_of(
        RunTree(ROOT),
        session_event("tool_started", {"name": "a"}, seq=4),
        session_event("tool_started", {"name": "b"}, seq=5),
        session_event(
            "tool_finished", {"name": "a", "status": "ok", "result": {"structured": [1]}}, seq=6
        ),
        session_event(
            "tool_finished", {"name": "b", "status": "error", "result": {"message": "no"}}, seq=7
        ),
        DONE,
    )

    results = {line["toolCallId"]: line["content"] for line in lines if "content" in line}
    assert results == {f"{ROOT}:4": "[1]", f"{ROOT}:5": "no"}


def test_an_approval_is_an_interrupt() -> None:
    """With the call that it is about, the form of the answer, and what is to be done."""
    tree = RunTree(ROOT)
    lines = stream_of(tree, answer("", ("c1", "pay", {"amount": 5})), approval("a1", "c1"))

    [interrupt] = lines[-1]["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["reason"], interrupt["toolCallId"]) == (
        "a1",
        "tool_call",
        "c1",
    )
    assert interrupt["message"] == "tool pay"
    assert interrupt["metadata"] == {"callboard": {"args": {"amount": 5}}}
    assert interrupt["responseSchema"]["required"] == ["approved"]
    assert "subagentRunId" not in interrupt
    assert tree.is_idle()
    assert not RunTree(ROOT).pending()
    free = RunTree(ROOT)
    assert (
        stream_of(free, approval("a2"))[-1]["outcome"]["interrupts"][0]["reason"] == "confirmation"
    )


def test_an_answered_interrupt_is_not_pending() -> None:
    """Neither once it was decided, nor when the client has just answered it."""
    events = answer("", ("c1", "pay", {})), approval("a1", "c1")
    answered = RunTree(ROOT, answered_ids=["a1"])
    for event in events:
        answered.of(event)
    decided = RunTree(ROOT)
    verdict = session_event(
        "approval_decided", {"approval_id": "a1", "status": "denied", "by": "bob"}
    )
    lines = stream_of(decided, *events, verdict)

    assert not answered.pending()
    assert not decided.pending()
    assert decided.outcomes == {"a1": "denied"}
    assert decided.answerable_ids == {"a1", "c1"}
    assert lines[3] == {
        "type": "CUSTOM",
        "name": "callboard.approval_decided",
        "value": {"approval_id": "a1", "status": "denied", "by": "bob"},
    }


def test_a_call_of_the_clients_tool_is_pending_until_its_result() -> None:
    """Calls of other tools are not the client's."""
    tree = RunTree(ROOT)
    both = answer("", ("c1", "pick", {}), ("c2", "sky", {}))
    call = session_event(
        "tool_started", {"name": "pick", "arguments": {}, "client": True}, tool_call_id="c1"
    )
    first = stream_of(tree, both, call)
    assert first[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    assert not tree.is_idle(), "the other tool goes on"
    tree.of(
        session_event(
            "tool_finished", {"name": "sky", "status": "ok", "result": RESULT}, tool_call_id="c2"
        )
    )
    assert tree.is_idle()
    red = {"status": "ok", "text": "red"}
    tree.of(
        session_event(
            "tool_finished", {"name": "pick", "status": "ok", "result": red}, tool_call_id="c1"
        )
    )

    assert not tree.pending()


def test_work_beside_a_question_is_not_idle() -> None:
    """A text that is said, a tool that is called, a run below: the client is told of the question later."""
    speaking, calling, below = RunTree(ROOT), RunTree(ROOT), RunTree(ROOT)
    for event in (approval("a1"), piece("x")):
        speaking.of(event)
    for event in (answer("", ("c1", "pay", {}), ("c2", "sky", {})), approval("a1", "c1")):
        calling.of(event)
    for event in (
        approval("a1"),
        session_event("child_started", {"child": CHILD, "agent": "helper/1"}),
    ):
        below.of(event)

    assert [tree.is_idle() for tree in (speaking, calling, below)] == [False, False, False]
    below.of(approval("a2", run=CHILD))
    assert below.is_idle(), "it asks, too"


def test_a_child_is_a_subagent() -> None:
    """Its events carry its id; its end comes once, from its own log or from its parent's."""
    started = session_event("child_started", {"child": CHILD, "agent": "acme:helper/1"})
    own_end = session_event("run_completed", {"output": 7}, run=CHILD)
    parents = session_event("child_finished", {"child": CHILD, "status": "completed", "output": 7})
    lines = stream_of(RunTree(ROOT), started, answer("hi", run=CHILD), own_end, parents, DONE)

    assert lines[0] == {"type": "SUBAGENT_STARTED", "subagentRunId": CHILD, "name": "helper"}
    assert [line.get("subagentRunId") for line in lines[1:4]] == [CHILD] * 3
    assert lines[4] == {"type": "SUBAGENT_FINISHED", "subagentRunId": CHILD, "result": 7}
    assert types(lines)[5:] == ["RUN_FINISHED"]
    assert sum(usage["inputTokens"] for usage in lines[-1]["usage"]) == 5


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_child_that_did_not_complete_is_an_error(status: str) -> None:
    """The run goes on; a run below that one is closed with it."""
    grandchild = "d" * 32
    lines = stream_of(
        RunTree(ROOT),
        session_event("child_started", {"child": CHILD, "agent": "helper/1"}),
        session_event("child_started", {"child": grandchild, "agent": "deep/1"}, run=CHILD),
        session_event("child_finished", {"child": CHILD, "status": status, "error": None}),
        DONE,
    )

    assert lines[1]["parentSubagentRunId"] == CHILD
    assert types(lines)[2:] == ["SUBAGENT_ERROR", "SUBAGENT_ERROR", "RUN_FINISHED"]
    assert (lines[3]["subagentRunId"], lines[3]["code"]) == (CHILD, status)
    assert lines[3]["message"] == f"helper was {status}"


def test_a_child_that_asks_is_suspended_and_begins_again() -> None:
    """The interrupt names it; the next stream opens it anew."""
    tree = RunTree(ROOT)
    lines = stream_of(
        tree,
        session_event("child_started", {"child": CHILD, "agent": "helper/1"}),
        approval("a1", run=CHILD),
    )

    assert lines[-2]["outcome"] == {"type": "suspended", "interruptIds": ["a1"]}
    assert lines[-1]["outcome"]["interrupts"][0]["subagentRunId"] == CHILD
    assert types(dumped(tree.reopen())) == ["SUBAGENT_STARTED"]
    assert tree.run_ids == (ROOT, CHILD)


def test_ends_are_told() -> None:
    """A failure is an error with the class as its code; a cancel is an outcome."""
    error = {"type": "builtins:ValueError", "message": "no such whale"}
    failed = stream_of(RunTree(ROOT), piece("half"), session_event("run_failed", {"error": error}))
    cancelled = stream_of(RunTree(ROOT), session_event("run_cancelled", {"reason": "enough"}))
    dequeued = stream_of(RunTree(ROOT), session_event("run_dequeued", {}))

    assert failed[-2]["type"] == "TEXT_MESSAGE_END"
    assert failed[-1] == {
        "type": "RUN_ERROR",
        "message": "no such whale",
        "code": "builtins:ValueError",
    }
    assert cancelled[-1]["outcome"] == dequeued[-1]["outcome"] == {"type": "cancelled"}


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("run_queued", {"ahead": 2}),
        ("run_waiting", {"signals": ["go"]}),
        ("run_resumed", {"reason": "woken"}),
        ("attempt_failed", {"attempt": 1, "error": {}, "retry_at": "2026-01-01T00:00:00Z"}),
        ("cancel_requested", {"reason": ""}),
    ],
)
def test_other_events_are_custom_ones(type_: str, payload: dict[str, Any]) -> None:
    """With the type of the session's event behind a prefix, and its payload."""
    [line, _] = stream_of(RunTree(ROOT), session_event(type_, payload))

    assert line == {"type": "CUSTOM", "name": f"callboard.{type_}", "value": payload}


def test_events_of_other_runs_are_passed_over() -> None:
    """A tree knows its own runs."""
    assert RunTree(ROOT).of(answer("x", run="f" * 32)) == []
