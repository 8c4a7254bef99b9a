"""A parent that spawns 100 children and joins them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors import SpawnBudget
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import Supervision
from actors.kernel.runtime.commit import Commit, Finish, NewRun, Spawned
from actors.kernel.runtime.ids import run_id_of_child, run_id_of_submit
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.log_entry import NewEntry
from actors.kernel.runtime.scheduler import RunStatus
from tests.benchmarks.bench import (
    PAYLOAD,
    TYPE,
    Floor,
    agent_id,
    many,
    open_runtime,
    open_store,
    report,
)
from tests.benchmarks.byhand import committed

if TYPE_CHECKING:
    from actors.kernel.runtime.ids import AgentId

CHILDREN = 100
AT_ONCE = 4
RESTATE_PER_S = 519
"""The best durable peer (DESIGN §14)."""


class Family:
    """A parent when it is told so by its key, else a child that returns at once."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Spawn and join, or return."""
        if not self.id.key.startswith("parent"):
            return PAYLOAD
        handles = [await ctx.spawn(TYPE, boot=PAYLOAD) for _ in range(CHILDREN)]
        results = await ctx.gather(*handles)
        return len(results)


async def ours(url: str, parents: int) -> float:
    """Return children per second, from the submit of the parents to their ends."""
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Family)
        budget = SpawnBudget(max_runs=CHILDREN)

        async def one(index: int) -> None:
            run = await runtime.submit(agent_id(f"parent{index}"), None, spawn_budget=budget)
            assert await runtime.result(run) == CHILDREN

        return parents * CHILDREN / await many(one, total=parents, at_once=AT_ONCE)


async def floor(url: str, parents: int) -> float:
    """Return children per second of the turns alone: spawn all, run each, take all answers."""
    async with open_store(url) as store:
        hand = await Floor.over(store)

        async def one(index: int) -> None:
            parent = agent_id(f"parent{index}")
            message = Message.of(parent, None).sent_by("submit:bench")
            run_id = run_id_of_submit(parent, "submit:bench", message.id)
            terms = Supervision(
                run_id=run_id, root_id=run_id, spawn_budget=SpawnBudget(max_runs=CHILDREN)
            )
            await store.submit(NewRun(run_id, parent, supervision=terms), message)
            lease = hand.lease(parent, run_id)
            children = [_child(run_id, parent, position) for position in range(CHILDREN)]
            entries = [NewEntry(K.RUN_STARTED, "", {"agent": str(parent)})]
            entries += [
                NewEntry(
                    K.CHILD_SPAWNED, child.position,
                    {"child": child.run.run_id, "agent": str(child.run.agent_id)},
                )
                for child in children
            ]  # fmt: skip
            done = await committed(hand, Commit(lease, -1, tuple(entries), spawned=tuple(children)))
            await many(
                lambda i: _run(hand, children[i]), total=CHILDREN, at_once=CHILDREN, warm_up=False
            )
            answers = await store.answers(run_id)
            assert len(answers) == CHILDREN
            taken = [
                NewEntry(K.CHILD_COMPLETED, str(i), {"child": a.key, "status": a.status})
                for i, a in enumerate(answers, CHILDREN)
            ]
            keys = tuple(answer.key for answer in answers)
            seq = done.last_seq
            await committed(hand, Commit(lease, seq, tuple(taken), take_answers=keys))
            end = NewEntry(K.RUN_COMPLETED, "", {"output": CHILDREN})
            finish = Finish(RunStatus.COMPLETED, CHILDREN)
            await committed(hand, Commit(lease, seq + len(taken), (end,), finish))

        return parents * CHILDREN / await many(one, total=parents, at_once=AT_ONCE)


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


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print one line."""
    parents = max(2, int(40 * scale))
    base = await floor(url, parents)
    rate = await ours(url, parents)
    report(
        benchmark="children", children=parents * CHILDREN, each_parent=CHILDREN,
        floor_per_s=round(base), children_per_s=round(rate), ratio=round(rate / base, 3),
        goal=0.4, times_restate=round(rate / RESTATE_PER_S, 1),
    )  # fmt: skip
