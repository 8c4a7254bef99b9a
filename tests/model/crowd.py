"""Many cases at a time in one runtime, each in a tenant of its own: that makes real servers cheap.

No faults here: a fault would affect all of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from actors._kernel.runtime.ids import AgentId
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import Broker
from tests.harness.faulty_store import Faults
from tests.model.drive import STUCK_S, Stage
from tests.model.leftovers import leftovers
from tests.model.program import in_tenant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.runtime.rows import RunRow
    from persistence.postgres import PostgresStore
    from tests.harness.heldloop import HeldLoop
    from tests.harness.simloop import SimLoop
    from tests.model.agent import ProgramAgent
    from tests.model.drive import Observed
    from tests.model.ground import Ground, Stead
    from tests.model.program import Case

TYPES: Final = ("program", "p1", "p2")


def tenants(cases: Sequence[Case]) -> list[Case]:
    """Return the cases, each in a tenant of its own."""
    return [in_tenant(case, f"t{n}") for n, case in enumerate(cases)]


class Crowd:
    """One play of many cases.

    Args: cases: Each in a tenant of its own. loop: In virtual time. ground: The ground of the
    cases. suspend_after: The runtime's. untils: The predicted end of each.
    """

    def __init__(  # noqa: PLR0917
        self,
        cases: Sequence[Case],
        loop: SimLoop | HeldLoop,
        ground: Ground,
        suspend_after: float,
        untils: Sequence[float],
    ) -> None:
        self._loop, self._ground, self._until = loop, ground, max(untils)
        self._stages = [
            Stage(case, loop, ground, suspend_after, Faults(), until)
            for case, until in zip(cases, untils, strict=True)
        ]
        self._of = {stage.agent.tenant: stage for stage in self._stages}
        self._listed: tuple[float, list[RunRow]] = (-1.0, [])
        for stage in self._stages:
            stage.list_runs = self._list_runs

    async def play(self) -> list[Observed]:
        """Play all of them to their ends; return the results of each."""
        async with self._ground.host() as stead:
            runtime = self._runtime(stead)
            await runtime.start()
            for type_ in TYPES:
                await runtime.register_type(type_, self._make)
            arrivals = [asyncio.ensure_future(stage.arrive()) for stage in self._stages]
            for stage in self._stages:
                await stage.submit(runtime)
            await asyncio.sleep(max(self._until - self._loop.time(), 0.0) + 1.0)
            for stage in self._stages:
                while not await stage.is_over():  # noqa: ASYNC110 - virtual time costs nothing
                    await asyncio.sleep(1.0)
            limit = self._loop.time() + STUCK_S
            while not await self._ground.is_settled() and self._loop.time() < limit:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            self._listed = (-1.0, [])
            for stage in self._stages:
                await stage.look()
            leftover_texts = await leftovers(runtime, self._ground.store, await self._list_runs())
            self._stages[0].seen.leftovers = leftover_texts
            for arrival in arrivals:
                arrival.cancel()
            await runtime.stop()
        return [stage.seen for stage in self._stages]

    async def _list_runs(self) -> list[RunRow]:
        """Return all runs; read once in an instant, for all."""
        if self._listed[0] != self._loop.time():
            self._listed = (self._loop.time(), await self._ground.store.lists.runs(limit=10_000))
        return self._listed[1]

    def _make(self, agent_id: AgentId) -> ProgramAgent:
        return self._of[agent_id.tenant].make(agent_id)

    def _runtime(self, stead: Stead) -> Runtime:
        broker: Any = None
        if stead.transport is not None:
            rows = cast("PostgresStore", stead.store)
            broker = Broker(stead.transport, rows.mail, rows.outbox)
        parts = self._stages[0].parts
        return Runtime(
            store=stead.store,
            owner=stead.owner,
            heartbeat_s=stead.heartbeat_s,
            broker=broker,
            capacity=10_000,
            **parts,
        )
