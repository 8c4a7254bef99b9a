"""Connections lost in mid-call: what was done is found by its key, what was not is sent again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from actors._kernel.agent.agent import NewSession, SessionChange
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.commit import Committed, Suspend
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.waits import Answer, WakeSet
from actors._kernel.stores.administration import NewAuditRow
from actors.errors import PersistenceError
from persistence.errors import DatabaseUnreachableError
from tests.conformance.bed import Turns, message, outgoing, result, started, suspended
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import connected, host, kinds, sql, waiting_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.bed import Bed
    from tests.harness.proxy import Loss
    from tests.harness.servers import OwnPostgres

CLERK = AgentId("clerk", "7")
Lost = Literal["request", "response"]
REFUSE_THE_SECOND = """
create function refuse() returns trigger language plpgsql as $$ begin
  if exists (select 1 from inbox) then raise exception 'not now' using errcode = '{code}'; end if;
  return null;
end $$
"""
REFUSING = (
    "create trigger refuse before insert on inbox for each statement execute function refuse()"
)


@asynccontextmanager
async def host_behind_a_proxy(
    url: str, schema: str, **settings: Any
) -> AsyncIterator[tuple[Bed, FaultProxy]]:
    """A host whose connections can be broken."""
    async with FaultProxy.to(url) as proxy, host(proxy.through(url), schema, **settings) as bed:
        yield bed, proxy


def lose(proxy: FaultProxy, what: Lost, mark: str) -> Loss:
    """Lose the next exchange whose request holds the mark."""
    if what == "request":
        return proxy.lose_request(request_has=mark.encode())
    return proxy.lose_response(request_has=mark.encode())


@pytest.mark.parametrize("what", ["request", "response"])
async def test_an_append_whose_answer_is_lost_is_written_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """With its neighbours of the same group, and callers do not notice."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(10)]
        loss = lose(proxy, what, "needle")

        seqs = await asyncio.gather(*(run.append(result("0", "needle")) for run in runs))

        assert loss.happened.is_set()
        assert seqs == [1] * 10
        assert [len(await kinds(run)) for run in runs] == [2] * 10
        assert await runs[0].append(result("1")) == 2


@pytest.mark.item(59)
@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_commit_whose_answer_is_lost_is_written_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """Its outcome is complete: messages sent, the cancel flag, and that its wait is over."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        run, other = await bed.begin(), await bed.begin(agent=CLERK)
        await bed.store.arrivals.signal(run.run_id, "go", 1, message_id="s", sender="client:x")
        await bed.store.arrivals.request_cancel(run.run_id, reason="enough")
        wake = WakeSet(signals=("go",))
        turn = run.turn(
            result("0", "needle"),
            suspended(wake),
            then=Suspend(wake),
            outgoing=(outgoing(to=CLERK, id="out"),),
            state={"k": 1},
        )
        loss = lose(proxy, what, "needle")

        outcome, beside = await asyncio.gather(
            bed.store.commits.commit(turn), other.send(other.turn(result("0")))
        )

        assert loss.happened.is_set()
        assert isinstance(outcome, Committed)
        assert (outcome.last_seq, outcome.cancel_requested, outcome.wake_now) == (2, "enough", True)
        assert [m.message.id for m in outcome.routed] == ["out"]
        assert isinstance(beside, Committed)
        assert len(await kinds(run)) == 3
        assert len(await kinds(other)) == 2
        assert len(await bed.store.backlog.pending_mail(agent=CLERK)) == 1


@pytest.mark.parametrize("what", ["request", "response"])
async def test_what_comes_from_outside_is_accepted_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """Submit, mail, signal and answer whose outcomes are lost say what they would have said."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        run = await bed.begin()
        losses = [lose(proxy, what, f"needle-{n}") for n in range(1, 5)]

        submission = await bed.submit("needle-1", agent=CLERK)
        arrivals = await bed.store.arrivals.deliver([message("needle-2", id="m", to=CLERK)])
        signal = await bed.store.arrivals.signal(
            run.run_id, "go", "needle-3", message_id="s", sender="client:x"
        )
        answer = Answer(run.run_id, "k", "replied", "needle-4")
        outcome = await bed.store.arrivals.answer(answer)

        assert all(loss.happened.is_set() for loss in losses)
        assert submission.arrived is not None
        assert [m.message.id for m in arrivals] == ["m"]
        assert signal.accepted
        assert outcome.accepted
        assert not (await bed.store.arrivals.answer(answer)).accepted
        assert len(await bed.store.lists.runs(agent=CLERK)) == 1
        assert len(await bed.store.backlog.pending_mail(agent=CLERK)) == 1
        assert len(await bed.store.reads.signals(run.run_id)) == 1


@pytest.mark.parametrize("what", ["request", "response"])
async def test_an_audit_row_whose_answer_is_lost_is_written_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """By the id of its write, in one statement; without an id there may be two."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        audit = bed.store.data.audit
        about: Any = {"tenant": "acme", "principal": "ada", "action": "run.cancel"}
        loss = lose(proxy, what, "needle-1")
        row = await audit.add(NewAuditRow(**about, thing="run:needle-1", write_id="w"))
        unsafe = lose(proxy, what, "needle-2")
        await audit.add(NewAuditRow(**about, thing="run:needle-2"))

        assert loss.happened.is_set()
        assert unsafe.happened.is_set()
        assert await audit.list("acme", thing="run:needle-1") == [row]
        count = {"request": 1, "response": 2}[what]
        assert len(await audit.list("acme", thing="run:needle-2")) == count


async def test_a_claim_whose_answer_is_lost_comes_with_the_next_one(
    postgres_dsn: str, schema: str
) -> None:
    """The shards are this host's all the same, and it gets usable leases for them."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        await bed.store.shards.release(list(bed.leases.values()))
        loss = lose(proxy, "response", "clerk")

        leases = await bed.claim() + await bed.claim()

        assert loss.happened.is_set()
        assert len({lease.shard for lease in leases}) == 8
        run = await bed.begin()
        assert isinstance(await run.send(run.turn(result("0"))), Committed)


async def test_the_old_server_process_has_ended_before_anything_is_sent_again(
    postgres_dsn: str, schema: str
) -> None:
    """A statement that still waits for a lock when its connection goes is not executed later."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        run = await bed.begin()
        async with connected(postgres_dsn, schema) as blocker:
            holding = blocker.transaction()
            await holding.start()
            await blocker.execute("select from runs where run_id = $1 for update", run.run_id)
            call = asyncio.ensure_future(run.append(result("0")))
            old = await waiting_for(blocker)
            proxy.reset()
            new = await waiting_for(blocker, besides=old)
            await holding.rollback()

        assert await call == 1
        assert len(new) == 1
        assert len(await kinds(run)) == 2


@pytest.mark.parametrize("code", ["57014", "53100"])
async def test_a_refusal_behind_a_lost_answer_does_not_say_that_nothing_happened(
    postgres_dsn: str, schema: str, code: str
) -> None:
    """The submit whose answer was lost has made its run; sent again it meets a limit, or a full disk."""
    async with host_behind_a_proxy(postgres_dsn, schema, outage_s=0.5) as (bed, proxy):
        await sql(postgres_dsn, schema, REFUSE_THE_SECOND.format(code=code))
        await sql(postgres_dsn, schema, REFUSING)
        loss = lose(proxy, "response", "needle")

        with pytest.raises(PersistenceError) as exc_info:
            await bed.submit("needle", agent=CLERK)

        assert loss.happened.is_set()
        assert isinstance(exc_info.value, DatabaseUnreachableError)
        assert "the outcome of what was under way is unknown" in str(exc_info.value)
        assert len(await bed.store.lists.runs(agent=CLERK)) == 1


async def test_calls_wait_while_the_server_restarts(
    own_postgres: OwnPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed in mid-stream and started again: every call succeeds, one line says away, one back."""
    server = own_postgres(durable=True)
    async with host(server.url, "restarts") as bed:
        runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(20)]

        async def work(n: int) -> None:
            for step in range(30):
                await runs[n].append(result(str(step)))

        working = asyncio.gather(*(work(n) for n in range(20)))
        while runs[0].seq < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.start)
        await working
        row = await bed.store.reads.run(runs[0].run_id)

        assert [len(await kinds(run)) for run in runs] == [31] * 20
        assert row is not None
        messages = [
            record.message for record in caplog.records if "connection to" in record.message
        ]
        assert messages[0].endswith("calls wait for it")
        assert messages[-1].endswith("is back")
        assert len(messages) <= 4


async def test_calls_give_up_after_the_limit_and_commits_wait_for_ever(
    own_postgres: OwnPostgres,
) -> None:
    """PersistenceError names the server and the limit; what a run did is written when the server is back."""
    server = own_postgres(durable=True)
    async with host(server.url, "limits", outage_s=0.5) as bed:
        run = await bed.begin()
        await asyncio.to_thread(server.stop)

        appending = asyncio.ensure_future(run.append(result("0")))
        for _ in range(2):
            with pytest.raises(PersistenceError, match=r"127\.0\.0\.1:\d+ gave no answer for 0\.5"):
                await bed.store.reads.run(run.run_id)
        with pytest.raises(PersistenceError):
            await bed.submit("x")
        assert not appending.done()
        await asyncio.to_thread(server.start)

        assert await appending == 1


async def test_a_silent_server_counts_as_lost(postgres_dsn: str, schema: str) -> None:
    """A route that drops everything does not hold a call for ever: a new connection is made."""
    async with host_behind_a_proxy(postgres_dsn, schema, answer_s=0.5) as (bed, proxy):
        run = await bed.begin()
        proxy.cut()
        call = asyncio.ensure_future(run.append(result("0")))
        await asyncio.sleep(0.8)
        proxy.heal()

        assert await call == 1
        assert len(await kinds(run)) == 2


async def test_a_cancelled_caller_leaves_the_store_usable(postgres_dsn: str, schema: str) -> None:
    """Its own outcome is open; everybody else's call goes on."""
    async with host(postgres_dsn, schema) as bed:
        runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(3)]
        calls = [asyncio.ensure_future(run.append(result("0"))) for run in runs]
        await asyncio.sleep(0)
        calls[1].cancel()

        answers = await asyncio.gather(*calls, return_exceptions=True)

        assert answers[0] == answers[2] == 1
        assert isinstance(answers[1], asyncio.CancelledError)
        assert await bed.store.reads.run(runs[1].run_id) is not None


@pytest.mark.parametrize("what", ["request", "response"])
async def test_facts_of_what_is_sent_again_are_written_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """Of a submit, and of the commit that begins and ends its run."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        losses = [lose(proxy, what, mark) for mark in ("needle-1", "needle-2")]
        submission = await bed.submit("needle-1", agent=CLERK, session=NewSession())
        run = Turns(bed, submission.run_id, CLERK)
        await run.append(started(CLERK))
        turns = (NewTurn(CLERK.key, "a", ChatMessage.of("user", "needle-2")),)
        change = SessionChange(("started", "ended"))
        await run.complete("needle-2", session=change, turns=turns)

        assert all(loss.happened.is_set() for loss in losses)
        facts = await bed.store.data.sessions.facts(CLERK)
        assert [(fact.number, fact.kind) for fact in facts] == [
            (1, "queued"),
            (2, "started"),
            (3, "ended"),
        ]
        assert [turn.id for turn in await bed.store.data.sessions.path(CLERK)] == ["a"]
