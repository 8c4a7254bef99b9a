"""10-step runs, against a plain program, and a floor that writes the same rows through the same committer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit, Finish
from actors._kernel.runtime.ids import run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from tests.benchmarks import mock
from tests.benchmarks.bench import (
    PAYLOAD,
    TYPE,
    Floor,
    agent_id,
    beside,
    many,
    open_runtime,
    open_store,
    report,
)

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId

STEPS = 10


class TenSteps:
    """An agent that does nothing but ten steps."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Do them."""
        for index in range(STEPS):
            await ctx.step("s", _payload, index)


async def _payload(index: int) -> dict[str, Any]:
    return PAYLOAD


async def floor(url: str, *, total: int, at_once: int) -> float:
    """Return steps per second of the store alone: one flush before each effect, as must be."""
    async with open_store(url) as store:
        hand = await Floor.over(store)

        async def write_steps(index: int) -> None:
            agent = agent_id(index)
            message = Message.of(agent, None).sent_by("submit:local")
            run = NewRun(run_id_of_submit(agent, "submit:local", message.id), agent)
            await store.arrivals.submit(run, message)
            lease = hand.lease(agent, run.run_id)
            started = (
                NewEntry(K.RUN_STARTED, "", {"agent": str(agent)}),
                NewEntry(K.MSG_RECEIVED, "in.0", {"message": message.to_json(), "arrival": 0}),
            )
            await store.commits.commit(Commit(lease, -1, started))
            seq = 1
            for step in range(STEPS):
                effect = {"effect": "step", "name": "s", "hash": "0" * 16, "id": "0" * 64}
                entries = (
                    NewEntry(K.EFFECT_INTENT, str(step), {**effect, "mode": "idempotent"}),
                    NewEntry(
                        K.EFFECT_RESULT, str(step), {**effect, "value": PAYLOAD, "status": "ok"}
                    ),
                )
                seq = await store.commits.append(lease, entries, expected_seq=seq)
            end = NewEntry(K.RUN_COMPLETED, "", {"output": None})
            await store.commits.commit(Commit(lease, seq, (end,), then=Finish(RunStatus.COMPLETED)))

        return total * STEPS / await many(write_steps, total=total, at_once=at_once)


async def runtime(url: str, *, total: int, at_once: int) -> float:
    """Return steps per second of runs submitted and awaited."""
    async with open_runtime(url) as rt:
        await rt.register_type(TYPE, TenSteps)

        async def run_agent(index: int) -> None:
            await rt.result(await rt.submit(agent_id(index), None))

        return total * STEPS / await many(run_agent, total=total, at_once=at_once)


async def plain(url: str, *, total: int, at_once: int) -> float:
    """Return steps per second of a plain program."""
    async with mock.opened(url) as database:
        took = await many(lambda i: mock.steps(database, i, STEPS), total=total, at_once=at_once)
        return total * STEPS / took


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for 1, 50 and 200 runs at once."""
    for at_once, total, goal in ((1, 100, 0.6), (50, 1500, 0.35), (200, 3000, 0.3)):
        runs = max(at_once, int(total * scale))
        least = await plain(url, total=runs, at_once=at_once)
        base = await floor(url, total=runs, at_once=at_once)
        ours = await runtime(url, total=runs, at_once=at_once)
        report(
            benchmark="steps",
            at_once=at_once,
            runs=runs,
            steps_per_s=round(ours),
            **beside(ours, mock=least, floor=base),
            goal_of_mock=goal,
        )
