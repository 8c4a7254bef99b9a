"""The plans that PostgreSQL used for each statement, also inside functions, from auto_explain's notices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from persistence._postgres.connection import link

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import asyncpg
    import pytest

    from persistence._postgres.connection.link import Connection, StoreSettings

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
"""For connections whose notices a `PlanBook` gets. Their user has to be a superuser."""

_FUNCTION: Final = re.compile(r"function \"?(?:\w+\.)?(\w+)[^\n]* (?:line|statement) (\d+)")

MODES: Final = ("force_generic_plan", "force_custom_plan")
"""Ways of planning: once for all, and anew for each execution."""
SMALL: Final = frozenset(
    {
        "artifact_uploads",
        "blockings",
        "cursors",
        "deployment",
        "hosts",
        "limit_places",
        "limits",
        "shards",
        "streams",
        "types",
    }
)
"""Tables that do not grow with the load."""

MOST: Final = 120
"""Maximum number of rows of a table that a statement may read, for a crowd of eight."""

WHOLE: Final[Mapping[str, str]] = {
    "runs_of_no_trace": "what has to go is all that is in it",
    "runs_to_stop": "runs that were asked to stop, and have not yet",
    "dead_letters_pkey": "the oldest ones come first",
    "follows_ended": "ends that no post on its way needs are taken first",
}
"""Indexes that are read from their start, and why that is cheap."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One execution of one statement.

    Attributes: query: Its text. function: The function that has it, "" for none. line: Of that
    function. root: Its plan, with the counters.
    """

    query: str
    function: str
    line: int
    root: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The place of the statement, for messages."""
        head = " ".join(self.query.split())[:70]
        return f"{self.function}:{self.line} {head}" if self.function else head

    @property
    def nodes(self) -> Iterator[Mapping[str, Any]]:
        """Yield every node of the plan."""
        todo = [self.root]
        while todo:
            node = todo.pop()
            todo += node.get("Plans", ())
            yield node

    @property
    def pages(self) -> int:
        """Return how many pages it read."""
        pages: int = self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"]
        return pages

    def read(self, node: Mapping[str, Any]) -> int:
        """Return how many rows a scan read, over all its loops."""
        row_count: float = node["Actual Rows"]
        for name in ("Rows Removed by Filter", "Rows Removed by Index Recheck"):
            row_count += node.get(name, 0)
        loops: float = node["Actual Loops"]
        return round(row_count * loops)


class PlanBook:
    """All plans since `clear`.

    Attributes: mode: The `plan_cache_mode` of connections that do not choose it. plans: In the
    order of their notices.
    """

    def __init__(self) -> None:
        self.mode = "force_generic_plan"
        self.plans: list[Plan] = []

    def hear(self, _connection: object, notice: asyncpg.PostgresLogMessage) -> None:
        """Record a plan; to be added to a connection as its log listener."""
        text = str(notice.message)
        if not text.startswith("duration: "):
            return
        plan = from_json(text.partition("plan:\n")[2])
        match = _FUNCTION.search(str(notice.context or ""))
        function, line = match.groups() if match else ("", None)
        self.plans.append(Plan(plan["Query Text"], function, int(line or 0), plan["Plan"]))

    def clear(self) -> None:
        """Drop the plans."""
        self.plans.clear()


def hearing(monkeypatch: pytest.MonkeyPatch) -> PlanBook:
    """Yield a book of the plans of all connections that stores make from now on."""
    book, connect = PlanBook(), link.connect

    async def connect_and_hear(
        settings: StoreSettings, extra: Mapping[str, str] | None = None
    ) -> Connection:
        plan_settings = {"plan_cache_mode": book.mode, **SETTINGS, **(extra or {})}
        connection = await connect(settings, plan_settings)
        connection.add_log_listener(book.hear)
        return connection

    monkeypatch.setattr(link, "connect", connect_and_hear)
    return book


def faults(plan: Plan) -> Iterator[str]:
    """Return the needless reads of this plan. Queries of asyncpg about types are excluded."""
    tables = {node["Relation Name"] for node in plan.nodes if "Relation Name" in node}
    if tables and all(table.startswith("pg_") for table in tables):
        return
    for node in plan.nodes:
        table, kind, read = node.get("Relation Name"), node["Node Type"], 0
        if (
            table is not None
            and table not in SMALL
            and not table.startswith("pg_")
            and kind.endswith("Scan")
        ):
            read = plan.read(node)
            if kind == "Seq Scan":
                yield f"all pages of {table}"
            index = node.get("Index Name")
            if index is not None and "Index Cond" not in node and index not in WHOLE:
                yield f"all of {index}"
        if read > MOST:
            yield f"{read} rows of {table}"
        lost = node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
        if lost > 100:
            yield f"{lost:.0f} pairs of rows"
