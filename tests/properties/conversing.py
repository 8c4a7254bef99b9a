"""Programs that call models, run with a fault at many store calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tests.model.strategies import finish
from tests.properties.corpus import once, sleep, step

if TYPE_CHECKING:
    from tests.model.program import Block, Case


def generate(*outcomes: Any, session: str | None = None, text: Any = 1) -> dict[str, Any]:
    """Return a call of a model; an outcome is a value, or the name of an error's class."""
    scripted = [
        {"d": 1 + n % 2, "err": outcome}
        if isinstance(outcome, str)
        else {"d": 1 + n % 2, "ok": outcome}
        for n, outcome in enumerate(outcomes)
    ]
    return {"op": "generate", "text": text, "session": session, "outcomes": scripted, "into": "x"}


def append(*texts: Any, session: str | None = None) -> dict[str, Any]:
    """Return an append of turns."""
    return {"op": "append", "texts": [*texts], "session": session}


COUNT: Final = {"op": "count", "session": None, "into": "y"}
TURNS: Final = {"op": "turns", "session": None}


def conversing(program: Block, **more: Any) -> Case:
    """Return a case whose turns stay."""
    return replace(finish(program, **more), retention="permanent")


CONVERSING: Final[dict[str, Case]] = {
    "turns": conversing([append(1, 2), generate(3), COUNT, TURNS, sleep(1), generate(4)]),
    "cuts": conversing([append(1, 2, 3), generate(4), sleep(1), generate(5), generate(6), TURNS]),
    "two sessions": conversing(
        [
            append(1, 2, session="side"),
            append(3, 4, 5),
            generate(1),
            generate(2, session="side"),
            generate(3),
        ]
    ),
    "later runs": conversing(
        [
            {"op": "tell", "to": "p1/a", "payload": 1},
            generate(1),
            step(1),
            sleep(9),
            {"op": "tell", "to": "p1/a", "payload": 2},
            sleep(9),
            generate(2),
        ],
        cast={"p1": [step(1), generate(1), append(7), COUNT, generate(2)]},
    ),
    "errors": conversing(
        [append(1), generate("ModelError", 1), once(1), generate("ScriptedError", 2), TURNS]
    ),
    "two at a time": conversing(
        [
            {"op": "gather", "branches": [[generate(1), append(2)], [sleep(0), generate(3)]]},
            generate(4, session="side"),
            COUNT,
        ]
    ),
    "forgotten": replace(
        conversing(
            [append(1, 2, 3), generate(1), {"op": "tell", "to": "p1/a", "payload": 1}, sleep(9)],
            cast={"p1": [step(1), generate(1), append(1, 2), generate(2), COUNT]},
        ),
        retention="run",
    ),
}
