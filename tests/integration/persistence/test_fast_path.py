"""The fast path and the general function are one: the same turns, the same rows, the same answers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.runtime.commit import (
    Committed,
    Conflict,
    Deleted,
    Finish,
    Missing,
    Outgoing,
    SignalKey,
    Suspend,
)
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, Wait, WakeSet
from persistence._postgres.commits import outcomes
from tests.conformance.bed import EPOCH, Turns, child_spawned, completed, result, started, suspended
from tests.integration.persistence.hosts import host, sql, store_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.commit import Commit
    from actors._kernel.runtime.rows import Arrived
    from tests.conformance.bed import Bed
    from tests.harness.servers.schemas import Schemas

AGENTS: Final = [AgentId("desk", f"a{n}") for n in range(3)] + [AgentId("clerk", "c", "acme")]
OPERATIONS: Final = 160
TABLES: Final = (
    "runs inbox event_log completions waits signals agent_state budgets dead_letters outbox"
)
TIMES: Final = "created_at updated_at received_at ts at since changed_at arrival wake_at"
"""Columns that say when; `arrival` is compared as a place in its agent's queue."""


@dataclass
class Player:
    """Random turns of a few agents, by one seed: each is what a worker would write at that point."""

    bed: Bed
    chance: random.Random
    open: dict[str, Turns] = field(default_factory=dict)
    queued: list[Turns] = field(default_factory=list)
    mail: list[Arrived] = field(default_factory=list)
    questions: dict[str, str] = field(default_factory=dict)
    """The question that a run waits for an answer to."""
    n: int = 0
    outcomes: list[Any] = field(default_factory=list)
    """What the store answered."""

    async def play(self) -> None:
        """Do so much of it; turns of different runs are sent together now and then."""
        for _ in range(OPERATIONS):
            moves = [self._move() for _ in range(self.chance.choice([1, 1, 2, 4]))]
            for move in moves:
                await move()

    def _move(self) -> Callable[[], Awaitable[None]]:
        return self.chance.choice(
            [
                self.submit,
                self.begin,
                self.handle,
                self.handle,
                self.handle,
                self.step,
                self.send,
                self.ask,
                self.ask,
                self.take,
                self.take,
                self.signal,
                self.remember,
                self.sleep,
                self.family,
                self.join,
                self.join,
                self.together,
                self.end,
                self.stale,
            ]
        )

    def _id(self) -> str:
        self.n += 1
        return f"n{self.n}"

    def _choose_run(self) -> Turns | None:
        return self.open[self.chance.choice(sorted(self.open))] if self.open else None

    async def _write(self, run: Turns, commit: Commit) -> Committed | None:
        outcome = await run.send(commit)
        self.outcomes.append(_describe(outcome))
        if not isinstance(outcome, Committed):
            return None
        self.mail += outcome.routed
        if isinstance(commit.then, Finish):
            self.open.pop(run.run_id, None)
            self.questions.pop(run.run_id, None)
        return outcome

    def _outgoing(self, run: Turns, *, is_question: bool) -> Outgoing:
        target = self.chance.choice([agent for agent in AGENTS if agent.tenant == run.agent.tenant])
        key, sender = self._id(), f"agent:{run.agent}"
        asker = run.run_id if is_question else None
        message = Message(key, target, {"n": self.n}, sender, created_at=EPOCH, reply_to=asker)
        return Outgoing(message, sender, target)

    async def submit(self) -> None:
        """Somebody submits, perhaps in the name of one who sends mail, too."""
        agent, other = self.chance.choice(AGENTS), self.chance.choice(AGENTS)
        sender = self.chance.choice(["submit:tests", f"agent:{other}"])
        submission = await self.bed.submit(agent=agent, id=self._id(), sender=sender)
        self.queued.append(Turns(self.bed, submission.run_id, agent))
        if self.chance.random() < 0.6:
            await self.begin()

    async def begin(self) -> None:
        """A submitted run begins, if nothing older of its sender waits for its agent."""
        if self.queued:
            run = self.queued.pop(self.chance.randrange(len(self.queued)))
            if await self._write(run, run.turn(started(run.agent))) is not None:
                self.open[run.run_id] = run
            else:
                self.queued.append(run)

    async def handle(self) -> None:
        """A message starts a run, which replies to a question, and perhaps ends at once."""
        if not self.mail:
            return
        first = self.mail.pop(self.chance.randrange(len(self.mail)))
        key = MessageKey(first.agent_id, first.sender, first.message.id)
        run, create = self.bed.turns_of_mail(key)
        entries = [started(run.agent)]
        parts: dict[str, Any] = {"create": create, "bind": (key,)}
        if first.message.reply_to is not None and self.chance.random() < 0.5:
            asker, question = RunId(first.message.reply_to), first.message.id
            parts["answers"] = (Answer(asker, question, "replied", result={"r": self.n}),)
        if self.chance.random() < 0.6:
            entries.append(completed({"n": self.n}))
            parts["then"] = Finish(RunStatus.COMPLETED, {"n": self.n})
        outcome = await self._write(run, run.turn(*entries, **parts))
        if outcome is None:
            self.mail.append(first)
        elif "then" not in parts:
            self.open[run.run_id] = run

    async def step(self) -> None:
        """A result; by a turn, as the first one of an execution is written."""
        if (run := self._choose_run()) is not None:
            await self._write(run, run.turn(result(self._id())))

    async def send(self) -> None:
        """A message between agents."""
        if (run := self._choose_run()) is not None:
            await self._write(
                run,
                run.turn(result(self._id()), outgoing=(self._outgoing(run, is_question=False),)),
            )

    async def ask(self) -> None:
        """A question, and the wait for its answer, without which nothing goes on in the run."""
        run = self._choose_run()
        if run is None or run.run_id in self.questions:
            return
        out = self._outgoing(run, is_question=True)
        assert isinstance(out.target, AgentId)
        wait = Wait("1", "ask", out.message.id, out.target, must=True)
        await self._write(run, run.turn(result(self._id()), outgoing=(out,), waits=(wait,)))
        self.questions[run.run_id] = out.message.id

    async def take(self) -> None:
        """An answer is taken, if there is one, or one is taken that is not there."""
        waiting = sorted(self.questions)
        if not waiting:
            return
        run = self.open[self.chance.choice(waiting)]
        answers = await self.bed.store.reads.answers(run.run_id)
        keys = tuple(answer.key for answer in answers) or ("nobody",)
        if (
            await self._write(run, run.turn(result(self._id()), take_answers=keys, waits=()))
            is not None
        ):
            self.questions.pop(run.run_id, None)

    async def signal(self) -> None:
        """A signal comes, and is taken."""
        if (run := self._choose_run()) is None:
            return
        await self.bed.store.arrivals.signal(
            run.run_id, "go", 1, message_id=self._id(), sender="client:t"
        )
        signals = await self.bed.store.reads.signals(run.run_id)
        signal_keys = tuple(SignalKey(signal.name, signal.n) for signal in signals[:2])
        await self._write(run, run.turn(result(self._id()), take_signals=signal_keys))

    async def remember(self) -> None:
        """State is set, and taken out again."""
        if (run := self._choose_run()) is not None:
            values: dict[str, Any] = {
                key: self.chance.choice([self.n, Deleted()]) for key in ("a", "b")
            }
            await self._write(run, run.turn(result(self._id()), state=values))

    async def sleep(self) -> None:
        """The run leaves memory; it is told what it waits for when that is there already."""
        if (run := self._choose_run()) is not None:
            key = self.questions.get(run.run_id)
            wake = WakeSet(signals=("go",), runs=() if key is None else (key,))
            await self._write(run, run.turn(suspended(wake), then=Suspend(wake)))

    async def family(self) -> None:
        """A child is spawned, joined, and ends."""
        if (run := self._choose_run()) is None or run.agent.tenant != "default":
            return
        child = run.child(self._id(), self.chance.choice(AGENTS[:3]), boot={"n": self.n})
        position = child.position
        wait = Wait(position, "join", child.run.run_id, target_run=child.run.run_id)
        joins = self.chance.random() < 0.5 and run.run_id not in self.questions
        waits = (wait,) if joins else None
        if await self._write(run, run.turn(child_spawned(child), spawned=(child,), waits=waits)):
            own = run.of_child(child)
            output: JsonValue = {"n": self.n}
            finish = Finish(RunStatus.COMPLETED, output)
            if await self._write(own, own.turn(started(own.agent))) is None:
                return
            if self.chance.random() < 0.4:
                self.open[own.run_id] = own
            else:
                await self._write(own, own.turn(completed(output), then=finish))

    async def join(self) -> None:
        """A run waits for the end of one that is not its child."""
        run, other = self._choose_run(), self._choose_run()
        if run is None or other is None or run is other or run.run_id in self.questions:
            return
        wait = Wait("1", "join", other.run_id, other.agent, target_run=other.run_id)
        if await self._write(run, run.turn(result(self._id()), waits=(wait,))) is not None:
            self.questions[run.run_id] = other.run_id

    async def together(self) -> None:
        """Turns of several runs are one group; one of them may be refused."""
        runs = [
            self.open[key] for key in self.chance.sample(sorted(self.open), len(self.open) // 2)
        ]
        commits = [
            run.turn(result(self._id()), outgoing=(self._outgoing(run, is_question=False),))
            for run in runs
        ]
        await asyncio.gather(
            *(self._write(run, commit) for run, commit in zip(runs, commits, strict=True))
        )

    async def end(self) -> None:
        """A run completes, whoever waits for it; rather one for which somebody does."""
        run = self._choose_run()
        joined_ids = sorted(key for key in self.questions.values() if key in self.open)
        if joined_ids and self.chance.random() < 0.7:
            run = self.open[joined_ids[0]]
        if run is not None:
            output: JsonValue = {"n": self.n}
            finish = Finish(RunStatus.COMPLETED, output)
            orphans = self.chance.choice([None, *HistoryRetention])
            await self._write(run, run.turn(completed(output), then=finish, orphans=orphans))

    async def stale(self) -> None:
        """A turn at the wrong end of the log changes nothing."""
        if (run := self._choose_run()) is not None:
            run.seq += 1
            await self._write(run, run.turn(result(self._id())))
            run.seq -= 1


def _describe(outcome: object) -> str:
    """What of an outcome is the same in every schema."""
    if isinstance(outcome, Committed):
        routed = [(str(message.agent_id), message.message.id) for message in outcome.routed]
        nudges = sorted(str(nudge) for nudge in outcome.nudges)
        cycles = sorted(str(cycle) for cycle in outcome.cycles)
        return f"{outcome.last_seq} {outcome.wake_now} {routed} {nudges} {cycles}"
    assert isinstance(outcome, Conflict | Missing) or outcome is not None
    return repr(outcome)


async def rows(url: str, schema: str) -> dict[str, list[str]]:
    """All rows, without what says when."""
    rows_by_table = {}
    for table in TABLES.split():
        rank_column = ", rank() over (partition by agent order by arrival) as place"
        more = rank_column if table in ("inbox", "runs") else ""
        texts = await sql(
            url,
            schema,
            f"select (to_jsonb(t) - $1::text[] || case when to_jsonb(t) ? 'ended_at' then"
            " jsonb_build_object('ended_at', to_jsonb(t) ->> 'ended_at' is not null) else '{}' end"
            f")::text as row from (select *{more} from {table}) t order by 1",
            [*TIMES.split(), "n", "id"],
        )
        rows_by_table[table] = [row["row"] for row in texts]
    return rows_by_table


@pytest.mark.parametrize("seed", range(8))
async def test_both_ways_write_the_same_rows_and_say_the_same(
    postgres_dsn: str, schemas: Schemas, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random turns of all usual shapes, and of some that are not, in two schemas."""
    results: list[tuple[dict[str, list[str]], list[Any]]] = []
    shares: list[float] = []
    for is_fast in (True, False):
        if not is_fast:
            monkeypatch.setattr(outcomes, "fast_arguments", lambda _: None)
        async with schemas.lent() as schema, host(postgres_dsn, schema) as bed:
            player = Player(bed, random.Random(seed))
            await player.play()
            turns = store_of(bed).commits
            shares.append(turns.fast / turns.groups)
            results.append((await rows(postgres_dsn, schema), player.outcomes))

    (fast, fast_outcomes), (general, general_outcomes) = results
    assert fast_outcomes == general_outcomes
    for table, expected in general.items():
        assert fast[table] == expected, table
    assert shares[0] > 0.4
    assert shares[1] == 0
