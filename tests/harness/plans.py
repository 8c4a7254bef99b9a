"""What PostgreSQL did for every statement, also inside functions, as auto_explain tells the connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import asyncpg

SETTINGS: Final[Mapping[str, str]] = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
}
"""For connections whose notices a `PlanBook` hears. Their user has to be a superuser."""

_FUNCTION: Final = re.compile(r"function \"?(?:\w+\.)?(\w+)[^\n]* (?:line|statement) (\d+)")


@dataclass(frozen=True, slots=True)
class Plan:
    """One execution of one statement.

    Attributes:
        query: Its text.
        function: In which function, "" for none.
        line: Of that function.
        root: Its plan, with what was counted.
    """

    query: str
    function: str
    line: int
    root: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Where it stands, for people."""
        head = " ".join(self.query.split())[:70]
        return f"{self.function}:{self.line} {head}" if self.function else head

    @property
    def nodes(self) -> Iterator[Mapping[str, Any]]:
        """Every node of the plan."""
        todo = [self.root]
        while todo:
            node = todo.pop()
            todo += node.get("Plans", ())
            yield node

    @property
    def pages(self) -> int:
        """How many pages it looked at."""
        pages: int = self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"]
        return pages

    def read(self, node: Mapping[str, Any]) -> int:
        """How many rows a scan looked at, over all its loops."""
        seen: float = node["Actual Rows"]
        for name in ("Rows Removed by Filter", "Rows Removed by Index Recheck"):
            seen += node.get(name, 0)
        loops: float = node["Actual Loops"]
        return round(seen * loops)


class PlanBook:
    """All plans since `clear`.

    Attributes:
        mode: The `plan_cache_mode` of connections that do not choose it.
        plans: In the order in which they were told.
    """

    def __init__(self) -> None:
        self.mode = "force_generic_plan"
        self.plans: list[Plan] = []

    def hear(self, _connection: object, notice: asyncpg.PostgresLogMessage) -> None:
        """Note a plan; to be added to a connection as its log listener."""
        text = str(notice.message)
        if not text.startswith("duration: "):
            return
        found = from_json(text.partition("plan:\n")[2])
        place = _FUNCTION.search(str(notice.context or ""))
        function, line = place.groups() if place else ("", None)
        self.plans.append(Plan(found["Query Text"], function, int(line or 0), found["Plan"]))

    def clear(self) -> None:
        """Forget them."""
        self.plans.clear()
