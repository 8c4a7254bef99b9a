"""The floors: the runtime's commits for questions, children and posts, written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.runtime.commit import Commit, Committed, Finish, Outgoing
from actors._kernel.runtime.ids import message_id_of_run, run_id_of_mail
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, Wait

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._kernel.runtime.rows import Arrived
    from tests.benchmarks.bench import Floor

HASH = "0" * 16

Payload: TypeAlias = "dict[str, JsonValue]"


async def committed(hand: Floor, commit: Commit) -> Committed:
    """Write a commit that has to succeed."""
    outcome = await hand.store.commits.commit(commit)
    assert isinstance(outcome, Committed), outcome
    return outcome


@dataclass
class Asking:
    """One run that asks, as its worker would write it."""

    hand: Floor
    agent: AgentId
    run_id: RunId
    seq: int = -1

    @classmethod
    async def begin(cls, hand: Floor, agent: AgentId) -> Asking:
        """Start a run."""
        message = Message.of(agent, None).sent_by("submit:bench")
        run = NewRun(message_id_of_run(f"run of {agent}", "0"), agent)  # type: ignore[arg-type]
        await hand.store.arrivals.submit(run, message)
        asking = cls(hand, agent, run.run_id)
        await asking.turn(NewEntry(K.RUN_STARTED, "", {"agent": str(agent)}))
        return asking

    async def turn(self, *entries: NewEntry, **parts: Any) -> Committed:
        """Write these entries with what belongs to them."""
        lease = self.hand.lease(self.agent, self.run_id)
        done = await committed(self.hand, Commit(lease, self.seq, entries, **parts))
        self.seq = done.last_seq
        return done

    async def ask(self, target: AgentId, position: int, payload: Any) -> tuple[Message, Committed]:
        """Write the commit that sends a question."""
        key = message_id_of_run(self.run_id, str(position))
        sender = f"agent:{self.agent}"
        question = Message(key, target, payload, sender, reply_to=self.run_id, correlation_id=key)
        sent: Payload = {"target": str(target), "message_id": key, "timeout_s": 30.0, "hash": HASH}
        done = await self.turn(
            NewEntry(K.ASK_SENT, str(position), sent),
            outgoing=(Outgoing(question, sender, target),),
            waits=(Wait(str(position), "ask", key, target, must=True),),
        )
        return question, done

    async def take(self, position: int, key: str) -> None:
        """Read the answer and write the commit that takes it."""
        [answer] = await self.hand.store.reads.answers(self.run_id)
        outcome: Payload = {
            "outcome": answer.status,
            "result": answer.result,
            "last_seq": answer.last_seq,
        }
        await self.turn(
            NewEntry(K.ASK_REPLIED, str(position), outcome), take_answers=(key,), waits=()
        )


def handled(arrived: Arrived, output: Any, *, answers: tuple[Answer, ...] = ()) -> dict[str, Any]:
    """Return the parts of the single commit of a run that a message starts and that ends at once."""
    agent, message = arrived.agent_id, arrived.message
    run_id = run_id_of_mail(agent, arrived.sender, message.id)
    received: Payload = {"message": message.to_json(), "arrival": arrived.arrival}
    entries = [
        NewEntry(K.RUN_STARTED, "", {"agent": str(agent)}),
        NewEntry(K.MSG_RECEIVED, "in.0", received),
    ]
    if answers:
        replied: Payload = {"effect": "reply", "hash": HASH, "status": "ok", "value": True}
        entries.append(NewEntry(K.EFFECT_RESULT, "0", replied))
    entries.append(NewEntry(K.RUN_COMPLETED, "", {"output": output}))
    return {
        "expected_seq": -1,
        "entries": tuple(entries),
        "then": Finish(RunStatus.COMPLETED, output),
        "create": NewRun(run_id, agent),
        "bind": (MessageKey(agent, arrived.sender, message.id),),
        "answers": answers,
    }


async def handle(hand: Floor, arrived: Arrived, *, reply: Any = None) -> None:
    """Write the single commit of such a run; with a reply if the message was a question."""
    message = arrived.message
    answers: tuple[Answer, ...] = ()
    if message.reply_to is not None:
        answers = (Answer(message.reply_to, message.id, "replied", result=reply),)
    parts = handled(arrived, None, answers=answers)
    lease = hand.lease(arrived.agent_id, parts["create"].run_id)
    await committed(hand, Commit(lease, **parts))
