"""Everything that a deployment does per message, per commit and by the clock, once, for a crowd of agents."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.agent import (
    ExpectedSession,
    HistoryRetention,
    NewSession,
    SessionChange,
    SpawnBudget,
)
from actors._kernel.agent.message import ChatMessage, MessageKey
from actors._kernel.agent.transcript import NO_CUT, NewCut, NewTurn
from actors._kernel.runtime.commit import (
    DELETED,
    BudgetDelta,
    Finish,
    FollowChange,
    Outgoing,
    OutOfOrder,
    Retry,
    SignalKey,
)
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, Wait, WakeSet
from actors._kernel.stores.administration import UsageFilter
from actors._kernel.stores.conversations import SessionFilter, SessionLabel
from actors._kernel.stores.limits import Claim, Limit, LimitScope
from actors._kernel.stores.runs import ApprovalFilter
from actors._kernel.stores.schedule import Schedule, Tick
from actors._kernel.stores.transport import SentSignal, Undecodable
from actors.errors import OutOfOrderError
from persistence._postgres.commits import committer
from persistence._postgres.commits.committer import SQL_FIND_COMMITS, SQL_FIND_ROUTED
from persistence._postgres.commits.outcomes import SQL_FIND_NUDGES
from persistence._postgres.commits.unit import MAX_ROW_BYTES
from persistence._postgres.connection.link import KEYED, Link, Links, ServerOutage
from persistence._postgres.data.artifacts import PostgresArtifacts
from persistence._postgres.mail import mail
from persistence._postgres.mail.arrivals import SQL_NUDGE
from persistence._postgres.mail.mail import SQL_FIND_INGESTED, SQL_FIND_SIGNALLED
from persistence._postgres.sharding.ownership import SQL_NEXT_DEATH
from tests.conformance.bed import (
    EPOCH,
    SERVES,
    Turns,
    answer,
    child_spawned,
    message,
    outgoing,
    result,
    started,
)
from tests.conformance.posts import NEWS, bring, post
from tests.conformance.talk import ask_wait, asked, join_wait, question, reply, rest, terms
from tests.integration.persistence.principals import make_change, take_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.json import JsonValue
    from actors._kernel.stores.runs import OnConflict
    from tests.conformance.bed import Bed
    from tests.integration.persistence.mailing import Post

CROWD: Final = 8
LONG: Final = AgentId("clerk", "long")
"""An agent whose mailbox is as long as the tables."""
WORN: Final = AgentId("desk", "worn")
"""An agent that has had as many runs."""
LARGE: Final = AgentId("clerk", "s1")
"""A session with as many facts, nodes, branches and cuts."""


@dataclass
class Workday:
    """The agents of one day. Their names are new every day."""

    post: Post
    day: str
    runs: list[Turns] = field(default_factory=list)

    @property
    def bed(self) -> Bed:
        """Their host."""
        return self.post.bed

    def agent(self, kind: str, n: int) -> AgentId:
        """One of them."""
        return AgentId("desk", f"{self.day}-{kind}-{n}")

    async def all(self, call: Callable[[int], Awaitable[Any]]) -> list[Any]:
        """Do it for every agent at once: what is committed together is one group."""
        return await asyncio.gather(*(call(n) for n in range(CROWD)))

    async def begin(self, kind: str, **parts: Any) -> list[Turns]:
        """A started run of every agent of a kind."""
        return await self.all(lambda n: self.bed.begin(agent=self.agent(kind, n), **parts))

    async def work(self) -> None:
        """All of it."""
        for part in (
            self.steps,
            self.mailboxes,
            self.outsiders,
            self.queues,
            self.signals,
            self.families,
            self.questions,
            self.cycles,
            self.failures,
            self.topics,
            self.broker,
            self.clockwork,
            self.schedules,
            self.conversations,
            self.sessions,
            self.requests,
            self.reading,
            self.housekeeping,
        ):
            await part()

    async def steps(self) -> None:
        """Steps, state, messages to others, and ends that concern nobody."""
        runs = await self.begin("step")
        await asyncio.gather(*(run.append(result("0")) for run in runs))
        to = self.agent("step", 0)
        for n, state in enumerate(({"k": 1, "l": 2}, {"k": 2, "l": DELETED})):

            async def turn(i: int, n: int = n, state: Any = state) -> None:
                run = runs[i]
                message = outgoing(to=to, id=f"{self.day}{n}", sender=f"agent:{run.agent}")
                await run.commit(run.turn(result(f"{n + 1}"), state=state, outgoing=(message,)))

            await self.all(turn)
        await asyncio.gather(*(run.suspend(WakeSet(message=True)) for run in runs))
        await asyncio.gather(*(run.append(result("4")) for run in runs))
        await asyncio.gather(*(run.complete() for run in runs))
        self.runs = runs

    async def outsiders(self) -> None:
        """Runs that are joined and interrupted by who started them, and asked for that."""
        store = self.bed.store
        modes: tuple[OnConflict, ...] = ("queue", "join", "interrupt")
        for mode in modes:

            async def submit(n: int, mode: OnConflict = mode) -> None:
                agent = self.agent("asked", n)
                submission = await self.bed.submit(
                    agent=agent, sender="ext:shop", on_conflict=mode, is_apart=True
                )
                assert await store.reads.started_by(submission.run_id) == "ext:shop"

            await self.all(submit)

    async def queues(self) -> None:
        """Runs that begin before an older one of their sender: refused, by an entry and by a turn."""

        async def hurry(n: int) -> None:
            agent = self.agent("queue", n)
            first, second = [await self.bed.submit(agent=agent) for _ in range(2)]
            run = Turns(self.bed, second.run_id, agent)
            assert isinstance(await run.send(run.turn(started(agent))), OutOfOrder)
            with pytest.raises(OutOfOrderError):
                await run.append(started(agent))
            await Turns(self.bed, first.run_id, agent).start()

        await self.all(hurry)

    async def mailboxes(self) -> None:
        """Runs of waiting mail, and of one that is long; one receives more on its way."""
        await asyncio.gather(
            *(
                self.post.ingest(
                    self.post.read(f"{self.day}{n}", to=LONG, sourced=True), agent=LONG
                )
                for n in range(3)
            )
        )
        long = await self.bed.store.backlog.pending_mail(agent=LONG, limit=3)
        key = [MessageKey(LONG, item.sender, item.message.id) for item in long]
        run, new = self.bed.turns_of_mail(key[0])
        await run.commit(run.turn(started(LONG), create=new, bind=(key[0],)))
        await run.commit(run.turn(result("0"), bind=(key[1],)))
        await run.complete()
        await self.bed.store.backlog.pending_mail(agent=LONG, limit=3)
        await self.bed.store.arrivals.deliver(
            [message(id=f"{self.day}-{n}", to=LONG) for n in range(3)]
        )

    async def signals(self) -> None:
        """Signals for runs that wait for them."""
        runs = await self.begin("signal")
        wake = WakeSet(signals=("go",), at=self.bed.in_s(3600))
        await asyncio.gather(*(run.suspend(wake) for run in runs))
        store = self.bed.store
        await asyncio.gather(
            *(store.arrivals.signal(r.run_id, "go", {}, message_id="m", sender="s") for r in runs)
        )
        signal_lists = await asyncio.gather(*(store.reads.signals(run.run_id) for run in runs))
        await asyncio.gather(
            *(
                run.commit(run.turn(result("0"), take_signals=(SignalKey("go", signals[0].n),)))
                for run, signals in zip(runs, signal_lists, strict=True)
            )
        )
        await asyncio.gather(*(run.complete() for run in runs))

    async def families(self) -> None:
        """Parents that join their children, and two kinds of orphans."""
        parents = await self.begin("parent", supervision=terms(spawn=SpawnBudget(max_runs=9)))
        sides = {
            kind: await asyncio.gather(*(self._spawn(p, kind, n) for n, p in enumerate(parents)))
            for kind in ("child", "orphan", "heir")
        }
        await asyncio.gather(*(run.start() for runs in sides.values() for run in runs))
        below = await self.all(lambda n: self._spawn(sides["orphan"][n], "below", n))
        children = sides["child"]
        joins = [join_wait(child) for child in children]
        await self.all(lambda n: rest(parents[n], joins[n]))
        await asyncio.gather(*(child.complete(1) for child in children))
        answer_lists = await self.all(lambda n: self.bed.store.reads.answers(parents[n].run_id))
        assert all(answer_lists)
        await self.all(
            lambda n: parents[n].commit(
                parents[n].turn(
                    result("1"),
                    take_answers=(answer_lists[n][0].key,),
                    waits=(),
                    known_waits=(joins[n],) if n % 2 else None,
                )
            )
        )
        retention = HistoryRetention
        await asyncio.gather(*(run.complete(orphans=retention.RUN) for run in sides["orphan"]))
        await asyncio.gather(*(run.complete(orphans=retention.PERMANENT) for run in parents))
        await asyncio.gather(*(run.start() for run in below))
        await asyncio.gather(*(run.cancel("no more") for run in (*sides["heir"], *below)))

    async def _spawn(self, parent: Turns, kind: str, n: int) -> Turns:
        child = parent.child(kind, self.agent(kind, n), boot={"n": n})
        await parent.commit(
            parent.turn(
                child_spawned(child), spawned=(child,), budget=BudgetDelta(turns=1, position="t")
            )
        )
        return parent.of_child(child)

    async def questions(self) -> None:
        """Asks that are answered by replies, by ends, by persons, or taken back."""
        askers = await self.begin("asker")
        targets = await self.all(lambda n: asked(askers[n], self.agent("target", n)))
        await self.all(lambda n: rest(askers[n], ask_wait("ask-1", self.agent("target", n))))
        await self.all(
            lambda n: targets[n].commit(
                targets[n].turn(
                    result("0"),
                    answers=(reply(askers[n], "yes"),),
                    budget=BudgetDelta(turns=1, position="0") if n % 2 else None,
                )
            )
        )
        await asyncio.gather(*(target.complete() for target in targets))
        messages = [question(run, self.agent("nobody", n), id="q") for n, run in enumerate(askers)]
        await self.all(
            lambda n: askers[n].commit(
                askers[n].turn(result("1"), outgoing=(messages[n],), take_answers=("ask-1",))
            )
        )
        await self.all(lambda n: self._take_back(askers[n], messages[n]))
        wait = Wait("2", "event", "a", request={"event": self.day})
        await asyncio.gather(*(rest(run, wait) for run in askers))
        arrivals = self.bed.store.arrivals
        assert len(await arrivals.emit(self.day, {}, limit=1)) == 1
        await asyncio.gather(*(arrivals.answer(Answer(r.run_id, "a", "resumed")) for r in askers))
        await asyncio.gather(*(run.complete() for run in askers))

    async def _take_back(self, run: Turns, message: Outgoing) -> None:
        assert isinstance(message.target, AgentId)
        key = MessageKey(message.target, message.sender, message.message.id)
        await run.commit(run.turn(result("2"), withdraw=(key,), unless_answered=("q",)))

    async def cycles(self) -> None:
        """Pairs that wait for each other."""
        first_runs, second_runs = await self.begin("one"), await self.begin("two")
        await self.all(lambda n: rest(first_runs[n], join_wait(second_runs[n])))
        await self.all(lambda n: rest(second_runs[n], join_wait(first_runs[n])))
        for run in await self.begin("of worn"):
            await rest(run, ask_wait("w", WORN))
        await self.bed.store.backlog.wait_cycles(self.bed.shards, younger_than_s=60)
        await self.all(
            lambda n: self.bed.store.arrivals.request_cancel(first_runs[n].run_id, reason="stop")
        )
        for runs in (first_runs, second_runs):
            await asyncio.gather(*(run.cancel("cycle") for run in runs))

    async def failures(self) -> None:
        """A run of several messages is taken apart; one is given up."""
        agents = [self.agent("failing", n) for n in range(CROWD)]
        boxes = [[self.post.read(f"{n}", to=a, sourced=True) for n in range(3)] for a in agents]
        await asyncio.gather(
            *(self.post.ingest(*box, agent=a) for a, box in zip(agents, boxes, strict=True))
        )
        runs = []
        for agent, box in zip(agents, boxes, strict=True):
            keys = tuple(MessageKey(agent, item.sender, item.message_id) for item in box)
            run, new = self.bed.turns_of_mail(keys[0])
            await run.commit(run.turn(started(agent), create=new, bind=keys))
            runs.append((run, keys))
        error: dict[str, JsonValue] = {"type": "ValueError", "message": "no"}
        payload: dict[str, JsonValue] = {
            "attempt": 1,
            "error": error,
            "retry_from": 0,
            "at": EPOCH.isoformat(),
            "kept": 1,
        }
        failed_entry = NewEntry(EntryKind.RUN_ATTEMPT_FAILED, "", payload)
        await asyncio.gather(
            *(
                run.commit(run.turn(failed_entry, then=Retry(EPOCH, {}, 0, keys[1:])))
                for run, keys in runs
            )
        )
        await asyncio.gather(*(run.append(result("0")) for run, _ in runs))
        end = NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": error})
        given_up = Finish(RunStatus.FAILED, error=error, dead_letter="max_retries")
        await asyncio.gather(*(run.commit(run.turn(end, then=given_up)) for run, _ in runs))

    async def topics(self) -> None:
        """Follows and posts, by turns and from outside."""
        runs = await self.begin("reader")
        follow = (FollowChange(NEWS, "eager"),)
        await asyncio.gather(*(run.commit(run.turn(result("0"), follows=follow)) for run in runs))
        sender = f"agent:{runs[0].agent}"
        by_turn = Outgoing(post(id=f"{self.day}t", sender=sender), sender, NEWS)
        await runs[0].commit(runs[0].turn(result("1"), outgoing=(by_turn,)))
        await self.bed.store.follows.follow(self.agent("outside", 0), NEWS)
        await self.bed.store.posts.publish(post(id=f"{self.day}o"))
        await bring(self.bed)
        await self.bed.store.posts.lazy(self.bed.shards)
        none = (FollowChange(NEWS, None),)
        await asyncio.gather(*(run.commit(run.turn(result("9"), follows=none)) for run in runs))
        await asyncio.gather(*(run.complete() for run in runs))

    async def broker(self) -> None:
        """Mail that travels: what leaves, what comes, and what is no mail."""
        store, own_agent = self.post.store, self.agent("there", 0)
        runs = await self.begin("here")
        away = AgentId("away", "1")
        messages = [outgoing(to=away, id="m", sender=f"agent:{run.agent}") for run in runs]
        await self.all(lambda n: runs[n].commit(runs[n].turn(result("0"), outgoing=(messages[n],))))
        leases = list(self.bed.leases.values())
        rows = await store.outbox.page(leases, limit=100)
        await store.mail.account_for([away])
        await asyncio.gather(*(store.outbox.hand_over(row) for row in rows[-3:]))
        await store.outbox.forget(rows[1:])
        await store.outbox.bury(rows[0], "too large")
        bad = Undecodable("no message", b"{")
        signal = [SentSignal(run.run_id, "go", {}) for run in runs]
        await self.post.ingest(
            self.post.read("bad", to=own_agent, content=bad, sourced=True),
            self.post.read("good", to=own_agent, sourced=True),
            agent=own_agent,
        )
        await self.all(
            lambda n: self.post.ingest(
                self.post.read("sig", to=runs[n].agent, content=signal[n], sourced=True),
                agent=runs[n].agent,
            )
        )
        await store.mail.cursors(leases, self.post.stream)
        await store.mail.low_water(self.post.stream)
        await store.mail.allow_purge(self.post.stream, 1)
        await asyncio.gather(*(run.complete() for run in runs))

    async def clockwork(self) -> None:
        """What hosts ask every few seconds."""
        store, shards = self.post.store, self.bed.shards
        leases = list(self.bed.leases.values())
        await store.shards.heartbeat(self.bed.owner, leases)
        await store.shards.claim(owner=self.bed.owner, serves=SERVES, limit=10)
        await store.backlog.due(shards, within_s=60)
        for some in (shards, shards[:1]):
            await store.backlog.who_has_mail(some, limit=3)
        await store.backlog.unnoticed(shards, younger_than_s=60)
        await store.backlog.blockings(shards)
        scope = LimitScope.parse("type:desk")
        await store.limits.set(Limit(scope=scope, max_concurrent=5, rate_per_s=2.5, burst=7))
        claim = Claim(scope=scope, held=0, wanted=1, starts=1)
        await store.limits.exchange(self.bed.owner, [claim])
        await store.limits.list()

    async def conversations(self) -> None:
        """Turns of sessions, cuts of their windows, and what is taken out of them again."""
        store = self.bed.store.data.transcripts
        runs = await self.begin("chat")

        def new_turn(n: int, k: int) -> NewTurn:
            return NewTurn("s", f"{n}.{k}", ChatMessage.of("user", "hello"), tokens=2)

        async def speak(n: int) -> None:
            run, turns = runs[n], tuple(new_turn(n, k) for k in range(4))
            await run.commit(run.turn(answer("0", input=1), turns=turns))
            await self.bed.store.data.usage.totals(UsageFilter(agent_id=run.agent))
            cut = NewCut("s", 1, NO_CUT, "Cut", ChatMessage.of("user", "so far"))
            await run.commit(run.turn(result("1"), cuts=(cut,)))
            await store.view(run.agent, "s", limit=2)
            await store.page(run.agent, "s", limit=2, offset=1)
            await store.count(run.agent, "s")
            await store.append(run.agent, [new_turn(n, 5)], run_id=f"{self.day}{n}")
            await store.clear_run(run.agent, "s", f"{self.day}{n}")
            await store.sessions(run.agent)
            await self.artifact(run.agent)
            await run.complete(clear_turns=n % 2 == 0)
            if n % 3 == 0:
                await store.clear(run.agent, "s")

        await self.all(speak)

    async def sessions(self) -> None:
        """Runs of sessions, long ones too, that go on from nodes, fail and are read; and their deletion."""
        store, transcripts = self.bed.store.data.sessions, self.bed.store.data.transcripts
        both = SessionChange(("started",))
        end_change = SessionChange(("ended",))

        has_large = await store.get(LARGE) is not None

        async def talk(n: int) -> None:
            agent = LARGE if n == 0 and has_large else self.agent("session", n)

            def new_turn(k: int) -> NewTurn:
                return NewTurn(agent.key, f"{self.day}{k}", ChatMessage.of("user", "hello"))

            async def begin(change: SessionChange, *turns: NewTurn, **session: Any) -> Turns:
                new_run = await self.bed.submit(agent=agent, session=NewSession("p", **session))
                await store.queued(agent, new_run.run_id)
                run = Turns(self.bed, new_run.run_id, agent)
                await run.commit(run.turn(started(agent), session=change, turns=turns))
                return run

            run = await begin(both, new_turn(1), new_turn(2), new_turn(3))
            [node] = await store.nodes(agent, [f"{self.day}2"])
            cut = NewCut(agent.key, node.ordinal, NO_CUT, "Cut", ChatMessage.of("user", "so far"))
            await run.commit(run.turn(result("0"), cuts=(cut,)))
            await run.complete(session=end_change)
            assert [fact async for fact in self.bed.store.reads.tail(run.run_id)]
            await store.switch(agent, f"{self.day}1")
            head = replace(both, head=f"{self.day}2")
            run = await begin(head, new_turn(4), new_turn(5), expected=ExpectedSession())
            at = await store.queued(agent, run.run_id)
            facts = store.tail(agent, after=at.number if at else 0)
            async with aclosing(self.bed.store.reads.tail(run.run_id)) as log, aclosing(facts):  # type: ignore[type-var]
                await anext(log), await anext(facts)
                await run.append(result("0"))
                await run.commit(run.turn(result("1")))
                await run.fail("no", session=end_change)
                assert [(await anext(log)).seq for _ in range(3)] == [1, 2, 3]
            await self._look(agent)
            await transcripts.clear_run(agent, agent.key, run.run_id)
            if agent is not LARGE:
                await store.begin_delete(agent)
                await store.finish_delete(agent)
                await transcripts.clear(agent, agent.key)

        await self.all(talk)

    async def requests(self) -> None:
        """Sessions of principals who come with tokens: made, named, listed; and tokens that end."""
        store = self.bed.store.data.directory

        async def ask(n: int) -> None:
            agent, owner = self.agent("asked", n), f"p-{n}"
            await take_token(self.bed.store.data.tokens, f"{self.day}-{n}", owner)
            await self.bed.store.data.flow_bundles.get("default", "b1", "1")
            await make_change(self.bed.store.data.audit, agent, owner)
            await store.create(agent, SessionLabel(title="t"), owner=owner)
            assert not await store.create(agent, SessionLabel(), owner="other")
            run = await self.bed.begin(agent=agent)
            await rest(run, Wait("1", "approval", f"{self.day}-{n}", request={}))
            for run_id in (None, run.run_id):
                own = ApprovalFilter(run_id=run_id, tenant="default", owner=owner)
                assert await self.bed.store.lists.approvals(own)
            await self.bed.store.lists.waits(run.run_id)
            owner_filter = SessionFilter(tenant="default", app=agent.type, owner=owner)
            assert agent in [s.agent_id for s in (await store.find(owner_filter, limit=5)).rows]
            assert agent in await self.bed.store.data.sessions.page("default", "desk", owner=owner)

        await self.all(ask)

    async def _look(self, agent: AgentId) -> None:
        store, transcripts = self.bed.store.data.sessions, self.bed.store.data.transcripts
        row = await store.get(agent)
        assert row is not None
        await store.recent(agent.tenant, agent.type, limit=3)
        await store.idle(agent.tenant, agent.type, before=datetime(2020, 1, 1, tzinfo=UTC), limit=3)
        await store.facts(agent, limit=3)
        async with aclosing(store.tail(agent, after=row.last_fact - 1)) as facts:  # type: ignore[type-var]
            await anext(facts)
            await self.post.store._fact_readers.poll(say=True)
        directory = self.bed.store.data.directory
        await directory.create(agent, SessionLabel(title="Whales"))
        await directory.relabel(agent, title="Whales")
        await directory.is_deleted(agent)
        await directory.find(SessionFilter(tenant=agent.tenant, app=agent.type), limit=3)
        await store.path(agent, limit=2)
        await store.path(agent, limit=2, branches=True)
        await store.nodes(agent, [f"{self.day}{k}" for k in range(4)])
        await transcripts.view(agent, agent.key, limit=2)
        await transcripts.page(agent, agent.key, limit=2)
        await transcripts.count(agent, agent.key)

    async def artifact(self, agent: AgentId) -> None:
        """A turn that is kept apart, and bytes that a program stores, reads and lets go."""
        store, large = self.bed.store.data.transcripts, "x" * (MAX_ROW_BYTES + 1)
        await store.append(agent, [NewTurn("large", "1", ChatMessage.of("user", large))])
        await store.page(agent, "large")
        await store.clear(agent, "large")
        links = Links(self.post.store.settings, ServerOutage(self.post.store.settings), 1)
        try:
            artifacts = PostgresArtifacts(links).of("default", str(agent))
            ref = await artifacts.store(b"some bytes")
            await artifacts.store(b"some bytes")
            await artifacts.pin(ref, owner="a")
            await artifacts.pins(prefix="a")
            await artifacts.read(ref.id, offset=2, limit=4)
            await artifacts.unpin(ref, owner="a")
            await PostgresArtifacts(links).collect(grace_s=3600)
            await artifacts.discard(ref.id)
        finally:
            await links.close()

    async def schedules(self) -> None:
        """Ticks that are due."""
        store = self.bed.store.schedules
        for n in range(CROWD):
            plan = Schedule(
                name=f"{self.day}{n}",
                agent_id=self.agent("tick", n),
                payload={},
                cron="* * * * *",
                base_at=self.bed.in_s(-60),
                next_at=self.bed.in_s(-1),
            )
            await store.put(plan, expected=None)
        due = await store.due(self.bed.shards, within_s=1)
        ticks = [Tick(d.schedule, d.schedule.next_at, None) for d in due]  # type: ignore[arg-type]
        await store.fire(list(self.bed.leases.values()), ticks)
        await store.zoned(self.bed.shards)
        await store.forget_done(older_than_s=86_400, limit=10)

    async def housekeeping(self) -> None:
        """What is swept."""
        await self.bed.store.retention.sweep(older_than_s=3600, limit=5)
        await self.bed.store.retention.forget_old(older_than_s=3600, limit=5)
        await self.bed.store.posts.sweep(limit=5)

    async def reading(self) -> None:
        """What a start, a wake-up, a caller, and who lost an answer read."""
        store, run = self.post.store, self.runs[0]
        await store.reads.load([run.run_id for run in self.runs])
        await asyncio.gather(*(store.reads.state(run.agent) for run in self.runs))
        await store.reads.state_at(run.agent, "k")
        await store.reads.tokens_left(run.run_id)
        await store.reads.run(run.run_id)
        for agent in (run.agent, WORN):
            await store.lists.find_run_for_agent(agent)
            await store.lists.run_of_message(agent, "s", "m")
            await store.lists.pending_count(agent)
        await store.lists.children(run.run_id)
        assert [entry async for entry in store.reads.entries(run.run_id)]
        ids = [run.run_id for run in self.runs]
        agents = [str(run.agent) for run in self.runs]
        names, keys = ["s"] * CROWD, ["m"] * CROWD
        mine = Link(store.settings, ServerOutage(store.settings), KEYED)
        try:
            for statement, *values in (
                (SQL_NUDGE, "nobody", names, names, agents, ids),
                (SQL_NEXT_DEATH, "nobody"),
                (SQL_FIND_COMMITS, ids, [1] * CROWD),
                (SQL_FIND_ROUTED, agents, names, keys),
                (committer.SQL_FIND_POSTED, agents, names, keys),
                (SQL_FIND_NUDGES, ids, ids),
                (SQL_FIND_INGESTED, agents, names, keys),
                (SQL_FIND_SIGNALLED, agents, names, keys, ids),
                (mail.SQL_FIND_POSTED, agents, names, keys),
            ):
                await mine.fetch("a test", statement, *values)
        finally:
            await mine.close()
