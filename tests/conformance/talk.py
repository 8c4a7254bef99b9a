"""Short ways for runs under test to ask, reply, wait and join."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from actors._kernel.agent.agent import ExecutionBudget, SpawnBudget, Supervision
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.runtime.commit import Outgoing, Suspend
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.waits import Answer, Wait, WakeSet
from tests.conformance.bed import EPOCH, started, suspended

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.commit import Committed
    from actors._kernel.runtime.rows import RunRow
    from actors._kernel.runtime.waits import WaitKind
    from tests.conformance.bed import Bed, Turns

CLERK = AgentId("clerk", "7")


def question(asker: Turns, to: AgentId, *, id: str = "ask-1") -> Outgoing:  # noqa: A002
    """An ask as it leaves with the asker's turn."""
    sender = f"agent:{asker.agent}"
    body = Message(
        id, to, "what?", sender, created_at=EPOCH, reply_to=asker.run_id, correlation_id=id
    )
    return Outgoing(body, sender, to)


async def asked(asker: Turns, to: AgentId = CLERK, *, id: str = "ask-1") -> Turns:  # noqa: A002
    """A started run of `to` that has the asker's question."""
    sent = question(asker, to, id=id)
    await asker.commit(asker.turn(outgoing=(sent,)))
    key = MessageKey(to, sent.sender, id)
    target, new = asker.bed.turns_of_mail(key)
    await target.commit(target.turn(started(to), create=new, bind=(key,)))
    return target


def reply(asker: Turns, value: JsonValue, *, id: str = "ask-1") -> Answer:  # noqa: A002
    """What answers the asker's question."""
    return Answer(asker.run_id, id, "replied", value)


def ask_wait(key: str, agent: AgentId = CLERK, *, must: bool = True) -> Wait:
    """An open ask of an agent."""
    return Wait("1", "ask", key, agent, must=must)


def join_wait(target: Turns, *, key: str | None = None, must: bool = True) -> Wait:
    """An open join of a run, or, with `key`, an open ask of one."""
    kind: WaitKind = "join" if key is None else "ask"
    return Wait("1", kind, key or target.run_id, target.agent, target.run_id, must=must)


async def rest(run: Turns, *waits: Wait, message: bool = False) -> Committed:
    """Let a run wait, suspended, for the answers of these waits."""
    wake = WakeSet(message=message, runs=tuple(wait.key for wait in waits))
    return await run.commit(run.turn(suspended(wake), then=Suspend(wake), waits=waits))


async def answers(bed: Bed, run: Turns) -> list[Answer]:
    """The run's answers."""
    return await bed.store.reads.answers(run.run_id)


async def row(bed: Bed, run: Turns | RunId) -> RunRow:
    """The row of a run that exists."""
    run_row = await bed.store.reads.run(run if isinstance(run, str) else run.run_id)
    assert run_row is not None
    return run_row


def terms(
    run_id: str = "",
    *,
    spawn: SpawnBudget | None = None,
    execution: ExecutionBudget | None = None,
    priority: int = 5,
) -> Supervision:
    """What a root may have and spend."""
    return Supervision(
        run_id=run_id,
        root_id=run_id,
        spawn_budget=spawn or SpawnBudget(),
        execution_budget=execution or ExecutionBudget(),
        priority=priority,
    )


def without_place(answer: Answer) -> Answer:
    """The answer without who gave it, and where its log ended."""
    return replace(answer, by=None, last_seq=-1)
