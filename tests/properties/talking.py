"""Programs of several agents that are run with a fault at every single store call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.model.strategies import finish
from tests.properties.corpus import once, sleep, step

if TYPE_CHECKING:
    from tests.model.program import Case


def ask(to: str, d: int = 16, payload: Any = 1) -> dict[str, Any]:
    """Return an ask with a time limit of this many ticks."""
    return {"op": "ask", "to": to, "payload": payload, "d": d, "into": "x"}


def ask_child(d: int = 16, child: int = 0) -> dict[str, Any]:
    """Return an ask of a child."""
    return {"op": "ask_child", "child": child, "payload": 2, "d": d}


def spawn(type_: str, boot: Any = 1) -> dict[str, Any]:
    """Return a spawn; without a boot message if that is None."""
    return {"op": "spawn", "type": type_, "boot": boot}


def child(op: str, n: int = 0) -> dict[str, Any]:
    """Return `await_child` or `stop_child`."""
    return {"op": op, "child": n}


def reply(value: Any = 7, which: int = 0) -> dict[str, Any]:
    """Return a reply to a received message."""
    return {"op": "reply", "which": which, "value": value}


def topic(op: str, n: int = 0, **rest: Any) -> dict[str, Any]:
    """Return `emit`, `follow` or `unfollow`."""
    return {"op": op, "topic": f"news{n}/default", **rest}


def tell(to: str, payload: Any = 3) -> dict[str, Any]:
    """Return a send to an agent."""
    return {"op": "tell", "to": to, "payload": payload}


UUID: Final = {"op": "uuid"}
FAIL: Final = {"op": "raise", "error": "ScriptedError"}
RECEIVE: Final = {"op": "receive", "d": 16, "into": "y"}

TALKING: Final[dict[str, Case]] = {
    "replied": finish([step(1), ask("p1/a")], cast={"p1": [step(3), reply(), step(2)]}),
    "replied twice": finish(
        [ask("p1/a"), ask("p1/a")], cast={"p1": [step(3), reply(1), reply(2), sleep(2)]}
    ),
    "ended without a reply": finish([ask("p1/a")], cast={"p1": [step(3), once(2)]}),
    "failed": finish([ask("p1/a"), step(1)], cast={"p1": [step(2), step("TerminalError")]}),
    "too slow": finish(
        [ask("p1/a", 3), step(1), RECEIVE], cast={"p1": [step(2), sleep(9), reply()]}
    ),
    "asked through": finish(
        [step(1), ask("p1/a")],
        cast={"p1": [step(2), ask("p2/a"), reply({"var": "x"})], "p2": [step(1), reply()]},
    ),
    "children": finish(
        [
            step(1),
            spawn("p1"),
            step(2),
            spawn("p1", None),
            child("await_child", 1),
            child("await_child"),
            child("await_child"),
        ],
        cast={"p1": [step(4), once(2)]},
    ),
    "children at once": finish(
        [
            spawn("p1", 0),
            spawn("p1", 1),
            {
                "op": "gather",
                "branches": [
                    [child("await_child", 0)],
                    [child("await_child", 1)],
                    [step(3), ask("p2/a")],
                ],
            },
        ],
        cast={"p1": [step(4), ask("p2/b", 6)], "p2": [step(2), reply()]},
    ),
    "cancelled children": finish(
        [spawn("p1"), step(1, 2), step(2), child("stop_child"), child("await_child"), ask_child(4)],
        cast={"p1": [step(2), spawn("p2"), sleep(12), step(1)], "p2": [step(1), sleep(12)]},
    ),
    "orphans": finish(
        [spawn("p1"), sleep(4), spawn("p1", None), step(1)],
        cast={"p1": [step(3), spawn("p2"), sleep(9)], "p2": [sleep(12)]},
    ),
    "asked child": finish(
        [spawn("p1"), step(1, 2), ask_child(), child("await_child"), ask_child()],
        cast={"p1": [step(2), RECEIVE, step(1), reply(5, 1), step(2)]},
    ),
    "budget": finish(
        [
            spawn("p1"),
            {
                "op": "try",
                "body": [spawn("p1", 2)],
                "catch": "SpawnDenied",
                "handler": [step(1)],
                "final": [],
            },
            child("await_child"),
            spawn("p2"),
            step(3),
            spawn("p1"),
        ],
        cast={"p1": [step(4)], "p2": [step(2)]},
        budget={"max_runs": 2, "max_concurrent": 1},
    ),
    "a child's children": finish(
        [spawn("p1"), step(1, 2), child("await_child")],
        cast={"p1": [step(2), spawn("p2"), step(1), spawn("p2")], "p2": [step(1)]},
        budget={"max_runs": 2},
    ),
    "posts": finish(
        [
            topic("follow", 1),
            tell("p1/a"),
            step(2, 1),
            sleep(9),
            topic("emit", payload=1),
            RECEIVE,
            sleep(2),
            topic("unfollow", 1),
            topic("emit", payload=2),
            sleep(9),
        ],
        cast={"p1": [step(3), topic("follow"), step(1), topic("emit", 1, payload=4)]},
    ),
    "first to answer": finish(
        [
            step(1),
            {"op": "select", "branches": [[ask("p1/a")], [step(2), ask("p2/a")], [sleep(14)]]},
            ask("p1/a"),
        ],
        cast={"p1": [step(2), sleep(5), reply(1)], "p2": [step(1), reply(2)]},
    ),
    "taken apart after a spawn": finish(
        [tell("p1/a"), sleep(1), tell("p1/a", 4), sleep(1), tell("p1/a", 5)],
        cast={"p1": [UUID, spawn("p2", None), FAIL], "p2": [step(1)]},
    ),
    "taken apart after a reply": finish(
        [
            {
                "op": "gather",
                "branches": [
                    [tell("p1/a")],
                    [sleep(1), ask("p1/a", 99)],
                    [sleep(2), ask("p1/a", 99)],
                ],
            }
        ],
        cast={"p1": [UUID, reply(7, 1), FAIL]},
    ),
}
