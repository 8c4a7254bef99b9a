"""Parents that spawn children and join them all: one of 100 at a time, eight at once, and one of 10,000."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors import SpawnBudget
from actors._kernel.agent.agent import Supervision
from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit, Finish, Spawned
from actors._kernel.runtime.ids import run_id_of_child, run_id_of_submit
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
from tests.benchmarks.byhand import committed

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId

SHAPES = ((1, 100, 20, 3000), (8, 100, 40, 3500), (1, 10_000, 1, 2500))
"""Parents at once, children of each, parents in all, and how many children a second are the goal."""
RESTATE_PER_S = 924
"""The best durable peer, one tree of 100."""


class Family:
    """A parent when it is told so by its key, else a child that returns at once."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Spawn and join, or return."""
        if not self.id.key.startswith("parent"):
            return PAYLOAD
        count: Any = inbox[0].payload
        handles = [await ctx.spawn(TYPE, boot=PAYLOAD) for _ in range(count)]
        results = await ctx.gather(*handles)
        return len(results)


async def ours(url: str, *, parents: int, each: int, at_once: int) -> float:
    """Return children per second, from the submit of the parents to their ends."""
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Family)
        budget = SpawnBudget(max_runs=each)

        async def run_parent(index: int) -> None:
            run = await runtime.submit(agent_id(f"parent{index}"), each, spawn_budget=budget)
            assert await runtime.result(run) == each

        return parents * each / await many(run_parent, total=parents, at_once=at_once)


async def floor(url: str, *, parents: int, each: int, at_once: int) -> float:
    """Return children per second of the commits alone: spawn all, run each, take all answers."""
    async with open_store(url) as store:
        hand = await Floor.over(store)

        async def run_parent(index: int) -> None:
            parent = agent_id(f"parent{index}")
            message = Message.of(parent, None).sent_by("submit:bench")
            run_id = run_id_of_submit(parent, "submit:bench", message.id)
            terms = Supervision(
                run_id=run_id, root_id=run_id, spawn_budget=SpawnBudget(max_runs=each)
            )
            await store.arrivals.submit(NewRun(run_id, parent, supervision=terms), message)
            lease = hand.lease(parent, run_id)
            children = [_child(run_id, parent, position) for position in range(each)]
            entries = [NewEntry(K.RUN_STARTED, "", {"agent": str(parent)})]
            entries += [
                NewEntry(
                    K.CHILD_SPAWNED,
                    child.position,
                    {"child": child.run.run_id, "agent": str(child.run.agent_id)},
                )
                for child in children
            ]
            done = await committed(hand, Commit(lease, -1, tuple(entries), spawned=tuple(children)))
            await many(lambda i: _run(hand, children[i]), total=each, at_once=each, warm_up=False)
            answers = await store.reads.answers(run_id)
            assert len(answers) == each
            answer_entries = [
                NewEntry(K.CHILD_COMPLETED, str(i), {"child": a.key, "status": a.status})
                for i, a in enumerate(answers, each)
            ]
            keys = tuple(answer.key for answer in answers)
            seq = done.last_seq
            await committed(hand, Commit(lease, seq, tuple(answer_entries), take_answers=keys))
            end = NewEntry(K.RUN_COMPLETED, "", {"output": each})
            finish = Finish(RunStatus.COMPLETED, each)
            await committed(hand, Commit(lease, seq + len(answer_entries), (end,), finish))

        return parents * each / await many(run_parent, total=parents, at_once=at_once)


def _child(parent_run: Any, parent: AgentId, position: int) -> Spawned:
    run_id = run_id_of_child(parent_run, str(position))
    agent = agent_id(run_id)
    run = NewRun(run_id, agent, parent=parent_run, root=parent_run, depth=1)
    boot = Message(f"boot-{run_id}", agent, PAYLOAD, f"spawn:{parent}")
    return Spawned(run, str(position), boot)


async def _run(hand: Floor, child: Spawned) -> None:
    agent, boot = child.run.agent_id, child.boot
    assert boot is not None
    entries = (
        NewEntry(K.RUN_STARTED, "", {"agent": str(agent)}),
        NewEntry(K.MSG_RECEIVED, "in.0", {"message": boot.to_json(), "arrival": 0}),
        NewEntry(K.RUN_COMPLETED, "", {"output": PAYLOAD}),
    )
    lease = hand.lease(agent, child.run.run_id)
    await committed(hand, Commit(lease, -1, entries, Finish(RunStatus.COMPLETED, PAYLOAD)))


async def plain(url: str, *, parents: int, each: int, at_once: int) -> float:
    """Return children per second of a plain program."""
    async with mock.opened(url) as database:
        took = await many(lambda i: mock.tree(database, i, each), total=parents, at_once=at_once)
        return parents * each / took


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for each shape."""
    for at_once, children, trees, goal in SHAPES:
        parents = max(at_once, int(trees * scale))
        each = children if trees * scale >= at_once else max(20, int(children * scale))
        shape = {"parents": parents, "each": each, "at_once": at_once}
        least = await plain(url, **shape)
        base = await floor(url, **shape)
        rate = await ours(url, **shape)
        report(
            benchmark="children",
            at_once=at_once,
            each_parent=each,
            children=parents * each,
            children_per_s=round(rate),
            **beside(rate, mock=least, floor=base),
            goal_per_s=goal,
            times_restate=round(rate / RESTATE_PER_S, 1),
        )
