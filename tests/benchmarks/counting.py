"""Counts of this process's work for an operation: statements, commits, tasks, calls of the loop, JSON.

Counts do not depend on the machine. The loop is counted from `counting` on, so enter it before a
store is opened: a driver keeps the loop's `create_future` for the life of a connection.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import asyncpg
import pydantic_core

import actors._kernel.json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from persistence.postgres import PostgresStore

_CALLED = re.compile(r"^\s*select ([a-z_]+)\(|\sfrom (?!unnest)([a-z_]+)\(")
_OURS = ("actors", "broker", "compose", "persistence")


@dataclass
class Counts:
    """The counts, by name if there are names."""

    statements: Counter[str] = field(default_factory=Counter)
    """Sent to PostgreSQL by this thread, by the function they call."""
    tasks: Counter[str] = field(default_factory=Counter)
    """By their coroutine."""
    calls: Counter[str] = field(default_factory=Counter)
    """Of `call_soon`, by what is called."""
    futures: int = 0
    encoded: int = 0
    """Texts of JSON made."""
    encoded_bytes: int = 0
    groups: int = 0
    """Statements that write commits, of any number of runs."""
    commits: int = 0

    def copy(self) -> Counts:
        """Return what was counted until now."""
        names = (Counter(self.statements), Counter(self.tasks), Counter(self.calls))
        numbers = (self.futures, self.encoded, self.encoded_bytes, self.groups, self.commits)
        return Counts(*names, *numbers)

    def __sub__(self, before: Counts) -> Counts:
        return Counts(
            self.statements - before.statements,
            self.tasks - before.tasks,
            self.calls - before.calls,
            self.futures - before.futures,
            self.encoded - before.encoded,
            self.encoded_bytes - before.encoded_bytes,
            self.groups - before.groups,
            self.commits - before.commits,
        )

    def figures(self) -> dict[str, int]:
        """Return the sums."""
        return {
            "groups": self.groups,
            "commits": self.commits,
            "statements": self.statements.total(),
            "tasks": self.tasks.total(),
            "futures": self.futures,
            "call_soon": self.calls.total(),
            "encoded": self.encoded,
            "encoded_bytes": self.encoded_bytes,
        }


class Counting:
    """Counts while `counting` lasts."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._thread = threading.get_ident()
        self.is_telling = False
        """Whether each PostgreSQL session reports its statistics at once, else up to ten seconds late."""

    def read(self, store: PostgresStore) -> Counts:
        """Return what was counted until now, with the commits of this store."""
        counts = self._counts.copy()
        counts.groups, counts.commits = store.commits.groups, store.commits.written
        return counts

    def loop(self, loop: asyncio.AbstractEventLoop) -> list[tuple[str, Callable[..., Any]]]:
        """Return the loop's methods with counting in front of them."""
        counts = self._counts
        make_future, make_task, call = loop.create_future, loop.create_task, loop.call_soon

        def create_future() -> asyncio.Future[Any]:
            counts.futures += 1
            return make_future()

        def create_task(coro: Any, **options: Any) -> asyncio.Task[Any]:
            counts.tasks[coro.__qualname__] += 1
            return make_task(coro, **options)

        def call_soon(callback: Any, *args: Any, **options: Any) -> asyncio.Handle:
            counts.calls[_name_of(callback)] += 1
            return call(callback, *args, **options)

        return [
            ("create_future", create_future),
            ("create_task", create_task),
            ("call_soon", call_soon),
        ]

    def statement(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Return the driver's method with counting in front of it."""
        counts = self._counts

        async def counted(self_: Any, query: str, *args: Any, **options: Any) -> Any:
            if threading.get_ident() == self._thread:
                counts.statements[_called(query)] += 1
            answer = await execute(self_, query, *args, **options)
            if self.is_telling:
                await execute(self_, "select pg_stat_force_next_flush()", (), 0, None)
            return answer

        return counted

    def encoding(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        """Return an encoder of JSON that counts what it makes."""
        counts = self._counts

        def counted(*args: Any, **options: Any) -> Any:
            text = encode(*args, **options)
            counts.encoded += 1
            counts.encoded_bytes += len(text)
            return text

        return counted


def _name_of(callback: Any) -> str:
    name: str = getattr(callback, "__qualname__", None) or type(callback).__name__
    return name


def _called(query: str) -> str:
    match = _CALLED.search(query)
    return match[1] or match[2] if match is not None else " ".join(query.split())[:40]


@contextmanager
def counting() -> Iterator[Counting]:
    """Count what the running loop and this thread do while the block lasts."""
    counts, loop = Counting(), asyncio.get_running_loop()
    with ExitStack() as stack:
        for name, counted in counts.loop(loop):
            stack.enter_context(patch.object(loop, name, counted))
        execute = counts.statement(asyncpg.Connection._execute)  # type: ignore[attr-defined]
        stack.enter_context(patch.object(asyncpg.Connection, "_execute", execute))
        encode = pydantic_core.to_json
        for module in [m for n, m in sys.modules.items() if n.partition(".")[0] in _OURS]:
            if module.__dict__.get("to_json") is encode:
                stack.enter_context(patch.object(module, "to_json", counts.encoding(encode)))
        hashed = counts.encoding(actors._kernel.json._canonical)
        stack.enter_context(patch.object(actors._kernel.json, "_canonical", hashed))
        yield counts
