"""Programs that store memories, run with a fault at many store calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.model import strategies
from tests.model.memories import TEXTS
from tests.model.strategies import finish
from tests.properties.corpus import once, sleep, step

if TYPE_CHECKING:
    from tests.model.program import Block, Case

EMBEDDED: Final = [[{"d": 1, "ok": None}], [{"d": 2, "ok": None}], [{"d": 1, "ok": None}]]
REFUSED: Final = [{"d": 1, "err": "ScriptedError"}, {"d": 1, "ok": None}]


def remember(text: int = 0, key: str | None = None, about: str = "agent") -> dict[str, Any]:
    """Return the statement that stores a text."""
    fact = TEXTS[text]
    return {"op": "remember", "text": fact, "key": key, "about": about, "into": "m"}


def recall(about: str = "agent") -> dict[str, Any]:
    """Return a search that finds all texts of a scope."""
    return {"op": "recall", "about": about, "into": "x"}


def forget(what: Any = "k", about: str = "agent") -> dict[str, Any]:
    """Return the deletion of a memory."""
    return {"op": "forget", "what": what, "about": about}


def block() -> dict[str, Any]:
    """Return a read of a block."""
    return {"op": "block", "name": "a", "into": "b"}


def set_block(text: int, expected: Any) -> dict[str, Any]:
    """Return a write of a block; a conflict is caught."""
    fact = TEXTS[text]
    stmt = {"op": "set_block", "name": "a", "text": fact, "expected": expected}
    return tried(stmt, "MemoryConflictError")


def tried(stmt: dict[str, Any], error: str) -> dict[str, Any]:
    """Return a statement whose error is caught."""
    return {"op": "try", "body": [stmt], "catch": error, "handler": [], "final": []}


def remembering(program: Block, *, query: Any = EMBEDDED[0], **more: Any) -> Case:
    """Return a case whose embedder answers, the query's perhaps later."""
    return strategies.remembering(finish(program, **more), [*EMBEDDED, query])


READ: Final = {"var": "b"}
SHARED: Final = "user:1"
REMEMBERING: Final[dict[str, Case]] = {
    "versions": remembering(
        [remember(0, "k"), remember(1, "k"), sleep(1), remember(1, "k"), recall(), step(1)]
    ),
    "forgotten": remembering(
        [remember(0), remember(0), forget({"var": "m"}), forget(), remember(0), recall()]
    ),
    "blocks": remembering(
        [block(), set_block(0, READ), sleep(1), set_block(1, 0), block(), set_block(2, READ)]
    ),
    "shared": remembering(
        [
            {"op": "tell", "to": "p1/a", "payload": 1},
            remember(0, "k", SHARED),
            sleep(9),
            recall(SHARED),
            forget("k", SHARED),
        ],
        cast={"p1": [step(1), remember(1, "k", SHARED), remember(2), recall(SHARED), recall()]},
    ),
    "at once": remembering(
        [
            {"op": "gather", "branches": [[remember(0, "k"), once(1)], [sleep(0), remember(1)]]},
            {"op": "select", "branches": [[remember(2), recall()], [sleep(1)]]},
            recall(),
        ]
    ),
    "an embedder that fails": remembering(
        [remember(0), tried(recall(), "Exception"), recall()], query=REFUSED
    ),
}
