"""Events of a session as a person reads them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from actors._sessions.events import EVENTS
from actors.sessions import EVENT_TYPES, SessionEvent
from compose._commands.sessions.screen import JsonScreen, TextScreen, question_text
from compose._commands.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

ARGS = {"risk": "high", "arguments": {"order": "7"}}
SAID: list[tuple[str, dict[str, Any], str]] = [
    ("run_queued", {"ahead": 2}, "waits behind 2 run(s) of this session\n"),
    ("loop_started", {"mode": "normal"}, ""),
    ("message", {"role": "assistant", "text": "Hi.", "content": []}, "Hi.\n"),
    ("text_delta", {"text": "Hi", "attempt": 1, "position": "0"}, "Hi"),
    ("reasoning_delta", {"text": "hm", "attempt": 1, "position": "0"}, "hm"),
    ("text_snapshot", {"text": "Hi", "attempt": 1, "position": "0"}, "Hi"),
    ("tool_started", {"name": "find", "arguments": {"n": 1}}, '→ find {"n": 1}\n'),
    (
        "tool_finished",
        {"name": "find", "status": "error", "result": {"text": "no\nsuch"}},
        "← find error: no such\n",
    ),
    (
        "approval_requested",
        {"approval_id": "a1", "what": "tool refund", "args": ARGS},
        '? refund {"order": "7"} waits for a person: decide a1\n',
    ),
    (
        "approval_decided",
        {"approval_id": "a1", "status": "denied", "by": "Kim", "comment": "no"},
        "denied by Kim: no\n",
    ),
    ("child_started", {"child": "c" * 32, "agent": "billing/7"}, "» cccccccc billing/7\n"),
    (
        "child_finished",
        {"child": "c" * 32, "status": "COMPLETED", "output": "paid"},
        "« cccccccc completed: paid\n",
    ),
    (
        "run_waiting",
        {"until": "2026-01-01T08:00:00Z"},
        "the run waits until 2026-01-01 08:00:00 UTC at the latest\n",
    ),
    ("run_resumed", {"reason": "recovered"}, "the run continues after a crash\n"),
    (
        "attempt_failed",
        {"attempt": 1, "error": {"message": "busy"}, "retry_at": "2026-01-01T08:00:00Z"},
        "attempt 1 failed: busy; again at 2026-01-01 08:00:00 UTC\n",
    ),
    ("cancel_requested", {"reason": "x"}, "stopping…\n"),
    ("cancel_timeout", {"waited_s": 3.0}, "the run has not ended within 3 s\n"),
    ("run_completed", {"output": {"n": 1}}, '{"n": 1}\n'),
    ("run_failed", {"error": {"message": "broken"}}, "the run failed: broken\n"),
    ("run_cancelled", {"reason": "Ctrl-C"}, "the run was cancelled: Ctrl-C\n"),
    ("run_dequeued", {}, ""),
]


def event(type_: str, payload: dict[str, Any], run: str = "r") -> SessionEvent:
    """An event of this type."""
    return EVENTS.validate_python(
        {
            "type": type_,
            "payload": payload,
            "session_id": "s",
            "run_id": run,
            "agent_id": "session/s",
            "at": "2026-01-01T00:00:00Z",
        }
    )


def piece(
    text: str, *, attempt: int = 1, position: str = "0", is_all: bool = False
) -> SessionEvent:
    """A piece of an answer, or all of it so far."""
    payload = {"text": text, "attempt": attempt, "position": position}
    return event("text_snapshot" if is_all else "text_delta", payload)


def answer(text: str) -> SessionEvent:
    """The whole answer."""
    return event("message", {"role": "assistant", "text": text, "content": []})


def screen_text(events: Sequence[SessionEvent], *, depth: int = 0, typed: str | None = None) -> str:
    """The screen after these events."""
    out = io.StringIO()
    console = Terminal(file=out, width=120, highlight=False, emoji=False)
    screen = TextScreen(console, lambda approval: f"decide {approval}")
    if typed is not None:
        screen.typed("r", typed, is_seen=True)
    for session_event in events:
        screen.event(session_event, depth=depth)
    return out.getvalue()


def test_each_type_has_an_example_here() -> None:
    """None is forgotten."""
    assert [type_ for type_, _, _ in SAID] == [*EVENT_TYPES]


@pytest.mark.item(343)
@pytest.mark.parametrize(("type_", "payload", "text"), SAID, ids=[case[0] for case in SAID])
def test_each_type_is_shown_in_words(type_: str, payload: dict[str, Any], text: str) -> None:
    """On one line of its own, or not at all."""
    assert screen_text([event(type_, payload)]) == text


def test_pieces_become_the_answer_and_it_is_not_said_twice() -> None:
    """The end of the run does not repeat it either."""
    events = [piece("Hi "), piece("you."), answer("Hi you.")]

    assert screen_text([*events, event("run_completed", {"output": "Hi you."})]) == "Hi you.\n"


def test_pieces_that_were_missed_come_with_the_answer() -> None:
    """Those at the end are added; if the beginning is missing, all of it is shown."""
    assert screen_text([piece("Hi "), answer("Hi you.")]) == "Hi you.\n"
    assert screen_text([piece("you."), answer("Hi you.")]) == "you.\n(the whole answer:)\nHi you.\n"


def test_a_snapshot_is_in_place_of_the_pieces() -> None:
    """A reader who came late goes on behind it; an empty one begins the answer anew."""
    late = [piece("Hi ", is_all=True), piece("you."), answer("Hi you.")]
    again = [piece("Hm"), piece("", attempt=2, is_all=True), piece("Hi.", attempt=2), answer("Hi.")]

    assert screen_text(late) == "Hi you.\n"
    assert screen_text(again) == "Hm\n(the answer begins anew)\nHi.\n"


def test_a_second_attempt_begins_the_answer_anew() -> None:
    """Another call of the model does not say so."""
    again = [piece("Hm"), piece("Hi.", attempt=2), answer("Hi.")]
    other = [piece("One."), answer("One."), piece("Two.", position="3"), answer("Two.")]

    assert screen_text(again) == "Hm\n(the answer begins anew)\nHi.\n"
    assert screen_text(other) == "One.\nTwo.\n"


def test_what_was_typed_here_is_not_shown_again() -> None:
    """A message that another terminal wrote is."""
    user = event("message", {"role": "user", "text": "hello", "content": []})

    assert screen_text([user], typed="hello") == ""
    assert screen_text([user]) == "you> hello\n"


def test_runs_below_show_their_tools_but_not_their_texts() -> None:
    """Indented."""
    events = [piece("secret"), answer("secret"), event("tool_started", {"name": "find"})]

    assert screen_text(events, depth=1) == "  → find\n"


def test_text_cannot_steer_the_terminal() -> None:
    """Control characters are shown as signs."""
    assert "\x1b" not in screen_text([piece("\x1b[2Jboo"), answer("\x1b[2Jboo")])


def test_json_lines_are_events(capsys: pytest.CaptureFixture[str]) -> None:
    """All that are shown, also of runs below."""
    screen = JsonScreen()
    for type_, payload, _ in SAID:
        screen.event(event(type_, payload), depth=1)
    screen.note("aside\x1b[2J")
    out, err = capsys.readouterr()

    assert [json.loads(line)["type"] for line in out.splitlines()] == [*EVENT_TYPES]
    assert err == "aside␛[2J\n"


def test_a_question_shows_what_a_tool_would_be_given() -> None:
    """Or what the agent asks, with its arguments."""
    assert question_text({"what": "tool refund", "args": ARGS}) == 'refund {"order": "7"}'
    assert question_text({"what": "pay", "args": {"to": "Kim"}}) == 'pay {"to": "Kim"}'
    assert question_text({"what": "go on", "args": None}) == "go on"
    hidden = {"what": "pay\x1b[2J", "args": {"to": "K\u202em"}}
    assert question_text(hidden) == r'pay␛[2J {"to": "K\u202em"}'
