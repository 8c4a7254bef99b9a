"""Programs that are run with a fault at every single store call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.model.strategies import finish

if TYPE_CHECKING:
    from tests.model.program import Block, Case


def step(*outcomes: Any, mode: str = "idempotent", **rest: Any) -> dict[str, Any]:
    """Return a step; an outcome is a value, or the name of an error's class."""
    scripted = [
        {"d": n % 3, "err": outcome} if isinstance(outcome, str) else {"d": n % 3, "ok": outcome}
        for n, outcome in enumerate(outcomes)
    ]
    return {"op": "step", "mode": mode, "outcomes": scripted, **rest}


def once(*outcomes: Any) -> dict[str, Any]:
    """Return an at-most-once step."""
    return step(*outcomes, mode="at_most_once")


def tool(mode: str) -> dict[str, Any]:
    """Return a call of a tool that works."""
    return {**step(4), "op": "tool", "mode": mode}


def sleep(d: int) -> dict[str, Any]:
    """Return a sleep of this many ticks."""
    return {"op": "sleep", "d": d}


def attempt(body: Block, handler: Block, final: Block, catch: str = "Exception") -> dict[str, Any]:
    """Return a try statement."""
    return {"op": "try", "body": body, "catch": catch, "handler": handler, "final": final}


REJECT: Final = {"op": "reraise"}
SET: Final = {"op": "set", "key": "k", "value": 1}
GET: Final = {"op": "get", "key": "k", "into": "x"}
SEND: Final = {"op": "send", "payload": 3}

CORPUS: Final[dict[str, Case]] = {
    "sequence": finish([SET, step(1), SEND, once(2), GET, tool("idempotent"), step(3)]),
    "waits": finish(
        [sleep(2), {"op": "signal", "name": "go"}, {"op": "receive", "d": 3}, step(1)],
        [(1, "go")],
        [2, 9],
    ),
    "mail alone": finish([{"op": "receive", "d": None}, step(1)], mail=[3, 5]),
    "chance": finish(
        [{"op": "now"}, {"op": "random", "into": "x"}, {"op": "uuid"}, sleep(1), step(1)]
    ),
    "retries": finish([step(1), step("ScriptedError", "ValueError", 2), SEND, once(3)]),
    "clean-up": finish(
        [attempt([step("ScriptedError", 1)], [step(2), SET, REJECT], [step(3), SEND]), GET, step(4)]
    ),
    "caught": finish(
        [
            attempt([once("ValueError")], [step(1)], [step(2)], "ValueError"),
            {"op": "clear", "key": "k"},
        ]
    ),
    "gather": finish(
        [
            {
                "op": "gather",
                "branches": [[step(1), once(2)], [sleep(2), step(3)], [SET, tool("at_most_once")]],
            }
        ]
    ),
    "failing gather": finish(
        [
            {
                "op": "gather",
                "branches": [[step("ScriptedError", 1)], [step(1), step(2)], [sleep(9)]],
            },
            step(5),
        ]
    ),
    "cancelled sibling": finish(
        [
            attempt(
                [
                    {
                        "op": "gather",
                        "branches": [[step(0), step("TerminalError")], [step(1), once(2)]],
                    }
                ],
                [step(3)],
                [],
            ),
            {"op": "select", "branches": [[step(1)], [step(0), sleep(9), step(2)]]},
        ]
    ),
    "scope": finish(
        [
            {
                "op": "scope",
                "branches": [[step(1)], [sleep(9), step(2)]],
                "body": [{"op": "join", "child": 0}, step(3), {"op": "cancel", "child": 1}],
            },
            SEND,
        ]
    ),
    "continued": finish(
        [SET, step(1), SEND, {"op": "receive", "d": 2}, {"op": "continue", "limit": 2}], mail=[1, 4]
    ),
    "in doubt": finish([step(1), once("RetryAfter", 2), once(3)]),
}
