"""Totals of usage: the usage of models' answers, added up in the commits that write the answers."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.transcript import UNNAMED
from actors._kernel.runtime.commit import Conflict, LeaseLost
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.administration import UsageFilter, UsageTotal
from tests.conformance.bed import DESK, answer, result

if TYPE_CHECKING:
    from tests.conformance.bed import Bed

CLERK = AgentId("desk", "2")
ALL = UsageFilter()


def figures(total: UsageTotal) -> tuple[object, ...]:
    """Return a total's numbers, without its keys."""
    tokens = (total.input, total.output, total.cached, total.cache_written)
    return total.calls, *tokens, total.cost_usd, total.unpriced


async def test_answers_count_with_their_entries_by_append_and_by_commit(bed: Bed) -> None:
    """Other entries count nothing. Costs are added exactly, on the day of the entries."""
    run = await bed.begin()
    used: dict[str, Any] = {"input": 10, "output": 3, "cached": 4, "cache_written": 2}
    await run.append(answer("0", **used, cost_usd=0.1), answer("1", **used, cost_usd=0.2))
    await run.append(result("2"), answer("3", status="error"))
    await run.commit(run.turn(answer("4", "n", output=1), answer("0~0", "n", input=10**20)))
    [loaded] = await bed.store.reads.load([run.run_id])

    rows = await bed.store.data.usage.totals(ALL)
    assert [(row.tenant, row.agent_id, row.model) for row in rows] == [
        ("default", DESK, "m"),
        ("default", DESK, "n"),
    ]
    assert {row.day for row in rows} == {entry.ts.date() for entry in loaded.entries[1:]}
    assert figures(rows[0]) == (2, 20, 6, 8, 4, Decimal("0.3"), 0)
    assert figures(rows[1]) == (2, 10**20, 1, 0, 0, Decimal(0), 2)


async def test_a_write_that_is_refused_or_repeated_counts_nothing_more(bed: Bed) -> None:
    """For a wrong last seq, a lost lease, and commits of the same batch."""
    run, other = await bed.begin(), await bed.begin(agent=CLERK)
    first = run.turn(answer("0", input=1))
    await run.commit(first)

    assert isinstance(await run.send(first), Conflict)
    async with bed.rival() as rival:
        await bed.lose_to(rival)
        assert isinstance(await other.send(other.turn(answer("0", input=1))), LeaseLost)
        rows = await rival.store.data.usage.totals(ALL)
    assert [(row.agent_id, *figures(row)[:2]) for row in rows] == [(DESK, 1, 1)]


async def test_totals_are_chosen_and_added_up(bed: Bed) -> None:
    """By each of tenant, agent, model and day, and by none of them."""
    store = bed.store.data.usage
    assert await store.totals(ALL, by=()) == []
    for agent, model in ((DESK, "m"), (DESK, "n"), (CLERK, "m"), (CLERK, "nul \x00")):
        run = await bed.begin(agent=agent)
        await run.commit(run.turn(answer("0", model, input=1, cost_usd=1.5)))
        await run.complete()
    [day] = await store.totals(ALL, by=("day",))
    assert day.day is not None

    async def read_totals(
        by: tuple[Any, ...] = ("model",), **conditions: Any
    ) -> list[tuple[Any, ...]]:
        rows = await store.totals(UsageFilter(**conditions), by=by)
        return [(row.tenant, row.agent_id, row.model, row.calls) for row in rows]

    assert figures(day) == (4, 4, 0, 0, 0, Decimal(6), 0)
    assert await read_totals() == [
        (None, None, UNNAMED, 1),
        (None, None, "m", 2),
        (None, None, "n", 1),
    ]
    assert await read_totals(("agent",)) == [(None, DESK, None, 2), (None, CLERK, None, 2)]
    assert await read_totals(("tenant",), model="m") == [("default", None, None, 2)]
    assert await read_totals((), agent_id=CLERK) == [(None, None, None, 2)]
    assert await read_totals((), type_="desk", tenant="default") == [(None, None, None, 4)]
    assert await read_totals((), type_="clerk") == await read_totals((), tenant="acme") == []
    assert await read_totals((), since=day.day, until=day.day) == [(None, None, None, 4)]
    assert await read_totals((), since=day.day + timedelta(days=1)) == []
    assert await read_totals((), until=day.day - timedelta(days=1)) == []


async def test_totals_outlive_runs_and_agents(bed: Bed) -> None:
    """Costs stay known after the logs are swept, and after the agent is deleted."""
    run = await bed.begin()
    await run.commit(run.turn(answer("0", input=1)))
    await run.complete()
    before = await bed.store.data.usage.totals(ALL)

    await bed.store.retention.sweep(older_than_s=0)
    await bed.store.retention.forget_agent(DESK, cancel=False)

    assert await bed.store.data.usage.totals(ALL) == before
    assert [figures(row)[:2] for row in before] == [(1, 1)]
