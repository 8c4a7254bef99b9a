"""The countable costs of `ctx.memory`: the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persistence.postgres import PostgresStore
from tests.benchmarks.bench import TYPE, agent_id, open_runtime
from tests.benchmarks.counting import counting
from tests.benchmarks.memories import Keeper

if TYPE_CHECKING:
    from actors._runtime import Runtime


async def remembered(runtime: Runtime, count: int) -> None:
    """Let an agent store this many texts."""
    order: Any = {"verb": "remember", "texts": [f"{count}: {n}" for n in range(count)]}
    await runtime.result(await runtime.submit(agent_id("keeper"), order))


async def test_a_memory_is_one_statement_beside_its_embedding(postgres_dsn: str) -> None:
    """And the commit of the effect, which writes nothing else; ten texts are ten statements."""
    with counting() as counts:
        async with open_runtime(postgres_dsn) as runtime:
            await runtime.register_type(TYPE, Keeper)
            store = runtime.store
            assert isinstance(store, PostgresStore)
            await remembered(runtime, 1)  # makes the tables
            before = counts.read(store)
            await remembered(runtime, 10)
            delta = counts.read(store) - before

    assert delta.statements["put_memory"] == 10
    others = {name for name in delta.statements if "memor" in name} - {"put_memory"}
    assert others == set()
