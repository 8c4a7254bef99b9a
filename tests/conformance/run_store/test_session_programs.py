"""Random operations on sessions: PostgreSQL and the store in memory return the same."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.agent import NewSession, SessionChange
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NewCut, NewTurn
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.errors import UnknownNodeError, UnknownSessionError
from actors.errors import ConflictError
from tests.conformance.bed import Turns, result, started
from tests.conformance.conftest import bed_of, memory_bed
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.conformance.bed import Bed

SEEDS: Final = 200 if IS_SLOW else 12
STEPS: Final = 60
REFUSED: Final = (ConflictError, UnknownNodeError, UnknownSessionError)
ROLES: Final = ("user", "assistant", "tool", "system")


@dataclass
class Program:
    """Operations on one session of two stores at once; the first one is the model.

    Attributes:
        beds: Both stores.
        chance: Chooses what is done.
        agent: The session.
    """

    beds: tuple[Bed, Bed]
    chance: random.Random
    agent: AgentId
    queue: list[tuple[Turns, ...]] = field(default_factory=list)
    """Runs that have not begun, by store."""
    open: tuple[Turns, ...] | None = None
    nodes: list[str] = field(default_factory=list)
    steps: int = 0

    async def both(self, *calls: Awaitable[Any]) -> tuple[Any, Any]:
        """Return the results of a call to each store, or the common refusal."""
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        first, second = ((type(x), str(x)) if isinstance(x, REFUSED) else x for x in outcomes)
        for answer in (first, second):
            if isinstance(answer, BaseException):
                raise answer
        return first, second

    async def same(self, *calls: Awaitable[Any]) -> Any:
        """Return the common answer of both stores."""
        first, second = await self.both(*calls)
        assert first == second
        return first

    def turns(self) -> tuple[NewTurn, ...]:
        """Return a few new nodes and some known ones."""
        turns = []
        for _ in range(self.chance.randrange(4)):
            if self.nodes and self.chance.random() < 0.1:
                name = self.chance.choice(self.nodes)
            else:
                name = f"{len(self.nodes)}"
                self.nodes.append(name)
            message = ChatMessage.of(self.chance.choice(ROLES), name * self.chance.randrange(2))
            turns.append(NewTurn(self.agent.key, name, message))
        return tuple(turns)

    def node(self) -> str:
        """Return a node that exists, was deleted, or never existed."""
        return self.chance.choice([*self.nodes[-9:], *self.nodes, "never"])

    async def submit(self) -> None:
        """Submit one more run; it may be refused."""
        name = f"m{self.steps}"
        outcomes = await self.both(
            *(bed.submit(agent=self.agent, id=name, session=NewSession(name)) for bed in self.beds)
        )
        if all(isinstance(outcome, tuple) for outcome in outcomes):
            assert outcomes[0] == outcomes[1]
            return
        assert outcomes[0].run_id == outcomes[1].run_id
        pairs = zip(self.beds, outcomes, strict=True)
        self.queue.append(
            tuple(Turns(bed, submitted.run_id, self.agent) for bed, submitted in pairs)
        )

    async def begin(self) -> None:
        """Start the oldest run, at some node."""
        if not self.queue or self.open:
            return
        self.open = self.queue.pop(0)
        head = self.node() if self.chance.random() < 0.4 else None
        change, turns = SessionChange(("started",), head), self.turns()
        for run in self.open:
            await run.commit(run.turn(started(self.agent), session=change, turns=turns))

    async def say(self) -> None:
        """Let the open run add nodes and a cut."""
        if self.open is None:
            return
        turns = self.turns()
        cuts: tuple[NewCut, ...] = ()
        view = await self.beds[0].store.data.transcripts.view(self.agent, self.agent.key, limit=99)
        if view.ordinals and self.chance.random() < 0.5:
            previous = -1 if view.cut is None else view.cut.upto
            upto = self.chance.choice([*view.ordinals.values()]) + self.chance.randrange(2)
            cuts = (NewCut(self.agent.key, upto, previous, f"c{self.steps}"),)
        for run in self.open:
            await run.commit(run.turn(result(f"{self.steps}"), turns=turns, cuts=cuts))

    async def end(self) -> None:
        """End the open run, or cancel a queued one."""
        change, turns = SessionChange(("ended",)), self.turns()
        if self.open is None:
            if self.queue:
                for run in self.queue.pop(self.chance.randrange(len(self.queue))):
                    await run.bed.store.arrivals.request_cancel(run.run_id, reason="no more")
                    await run.cancel("no more", session=change)
            return
        how = self.chance.choice(("complete", "fail", "cancel"))
        clears = self.chance.random() < 0.1
        for run in self.open:
            await getattr(run, how)("x", session=change, turns=turns, clear_turns=clears)
        self.open = None

    async def switch(self) -> None:
        """Make another node the active one."""
        node = self.node()
        await self.same(*(bed.store.data.sessions.switch(self.agent, node) for bed in self.beds))

    async def delete(self) -> None:
        """Execute a step of a deletion."""
        if self.chance.random() < 0.5:
            await self.same(
                *(bed.store.data.sessions.begin_delete(self.agent) for bed in self.beds)
            )
        elif not self.queue and self.open is None:
            await self.same(
                *(bed.store.data.sessions.finish_delete(self.agent) for bed in self.beds)
            )

    async def clear(self) -> None:
        """Clear the nodes of a run, or all."""
        stores = [bed.store.data.transcripts for bed in self.beds]
        turns = await stores[0].page(self.agent, self.agent.key, branches=True)
        runs = sorted({turn.run_id for turn in turns})
        if runs and self.chance.random() < 0.8:
            run = self.chance.choice(runs)
            await self.same(*(s.clear_run(self.agent, self.agent.key, run) for s in stores))
        elif self.chance.random() < 0.3:
            await self.same(*(s.clear(self.agent, self.agent.key) for s in stores))

    async def seen(self, bed: Bed) -> list[object]:
        """Return all readable data of the session, without times."""
        sessions, transcripts, key = (
            bed.store.data.sessions,
            bed.store.data.transcripts,
            self.agent.key,
        )
        row = await sessions.get(self.agent)
        readings: list[object] = [
            row and (row.project, row.last_fact, row.open_runs, row.head),
            [(f.number, f.kind, f.run_id, f.ahead) for f in await sessions.facts(self.agent)],
        ]
        nodes = await sessions.nodes(self.agent, self.nodes)
        readings += [
            [(turn.ordinal, turn.id, turn.run_id, turn.parent) for turn in turns]
            for turns in (await sessions.path(self.agent), nodes)
        ]
        for more in ({}, {"branches": True}, {"limit": 2, "offset": 1}, {"after": 3, "limit": 3}):
            page = await transcripts.page(self.agent, key, **more)
            readings.append([turn.id for turn in page])
        readings.append(await transcripts.count(self.agent, key))
        for limit, whole in ((99, False), (2, False), (99, True)):
            view = await transcripts.view(self.agent, key, limit=limit, whole=whole)
            cut = view.cut and (view.cut.upto, view.cut.strategy, view.cut.run_id)
            readings += [cut, dict(view.ordinals), view.count]
        return readings

    async def run(self) -> None:
        """Execute the program; after each step both stores return the same."""
        verbs = (
            *(self.submit, self.begin, self.say, self.say, self.end, self.end),
            *(self.switch, self.switch, self.delete, self.clear),
        )
        weights = (5, 6, 3, 3, 3, 3, 3, 3, 1, 1)
        for self.steps in range(STEPS):
            [verb] = self.chance.choices(verbs, weights)
            await verb()
            first, second = [await self.seen(bed) for bed in self.beds]
            assert second == first, (self.steps, verb.__name__)


@pytest.mark.costly
@pytest.mark.postgres
async def test_random_programs_show_the_same_in_both_stores(request: pytest.FixtureRequest) -> None:
    """Submits, starts, nodes, cuts, ends, switches, deletions and clears, compared after each step."""
    async with memory_bed() as model, bed_of("postgres", request) as bed:
        for each_bed in (model, bed):
            await each_bed.claim()
        for seed in range(SEEDS):
            agent = AgentId("desk", f"s{seed}", "acme" if seed % 2 else "default")
            try:
                await Program((model, bed), random.Random(seed), agent).run()
            except BaseException as exc:
                exc.add_note(f"seed {seed}")
                raise
