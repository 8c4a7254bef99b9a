"""Cards of a run that goes on: its log is read once, entry by entry."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from actors import AgentId, Message, RunContext, Runtime
from actors._runtime.replay.verdict import row_of
from compose._web.pages import cards
from compose._web.pages.cards import Folds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import pytest

    from actors._kernel.agent.transcript import Turn
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.log_entry import RunLogEntry
    from compose._web.pages.cards import RunCards


class Chat:
    """Waits for three signals, and does a step behind each."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return when all have come."""
        del inbox
        for n in range(3):
            await ctx.sleep_until_signal(f"go-{n}")
            await ctx.step("done", int, n)
        return "done"


class Reader:
    """A page's view of a runtime, which notes the entries that are read."""

    def __init__(self, runtime: Runtime) -> None:
        self.hidden_names, self.runtime, self.read = runtime.hidden_names, runtime, list[int]()

    async def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield entries."""
        async for entry in self.runtime.entries(run_id, from_seq=from_seq):
            self.read.append(entry.seq)
            yield entry

    async def cards(self, folds: Folds, run_id: RunId) -> RunCards:
        """The cards as a page has them now."""
        row = await row_of(self.runtime.store, run_id)
        return await folds.cards_of(self, row.agent_id, row, nothing)  # type: ignore[arg-type]


async def nothing(_: Sequence[str]) -> list[Turn]:
    """There are no nodes."""
    return []


@asynccontextmanager
async def chatting() -> AsyncIterator[Runtime]:
    """A runtime with such agents."""
    async with Runtime(suspend_after=0) as runtime:
        await runtime.register_type("chat", Chat)
        yield runtime


async def waits(runtime: Runtime, run_id: RunId, count: int) -> None:
    """Return when the run waits for the next signal behind so many."""
    wait_count = 0
    async for entry in runtime.tail(run_id):
        wait_count += entry.kind == "run.suspended"
        if wait_count > count:
            return


async def test_a_page_of_an_open_run_reads_each_entry_once() -> None:
    """Of one that has ended nothing is kept; what a reader does to the cards stays with it."""
    folds = Folds()
    async with chatting() as runtime:
        run_id = await runtime.submit(AgentId("chat", "s"), None)
        reader = Reader(runtime)
        for n in range(3):
            await waits(runtime, run_id, n)
            (await reader.cards(folds, run_id)).cards["mine"] = Any  # type: ignore[assignment]
            assert "mine" not in (await reader.cards(folds, run_id)).cards
            await runtime.signal(run_id, f"go-{n}")
        await runtime.result(run_id)
        await reader.cards(folds, run_id)
        count = len(reader.read)
        await reader.cards(folds, run_id)

    assert count > 9
    assert reader.read[:count] == list(range(count))
    assert reader.read[count:] == list(range(count))


async def test_only_so_many_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was looked at longest ago is read from its start again."""
    monkeypatch.setattr(cards, "MOST_FOLDS", 1)
    folds = Folds()
    async with chatting() as runtime:
        runs = [await runtime.submit(AgentId("chat", f"{n}"), None) for n in range(2)]
        reader = Reader(runtime)
        for run_id in runs:
            await waits(runtime, run_id, 0)
            await reader.cards(folds, run_id)
        before = len(reader.read)
        await reader.cards(folds, runs[1])
        same = len(reader.read)
        await reader.cards(folds, runs[0])

    assert same == before
    assert reader.read[same:] == list(range(len(reader.read) - same)) != []
