"""External messages are read again after a move, a loss or a roll-back, and handled once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import pytest_asyncio

from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_mail
from tests.system.outside import Desk, make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.json import JsonValue
    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOBODY = AgentId("invalid", "invalid")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> AsyncIterator[Bed]:
    """Yield servers and an external client; each test starts its own hosts."""
    async with make_bed(postgres_server, nats_server, redis_server) as new_bed:
        yield new_bed


class Seen(NamedTuple):
    """The outcomes of all published messages."""

    handled: list[JsonValue]
    letters: list[tuple[int, int]]
    signalled: object


async def set_back(bed: Bed, how: str) -> None:
    """Let the next host read all messages again."""
    if how == "cursors":
        await bed.execute("delete from cursors")
    elif how == "epoch":
        await bed.execute("update streams set created = created - interval '1 second'")
    else:
        assert (await bed.api(f"STREAM.DELETE.{bed.namespace}_MAIL"))["success"]


async def publish_all(bed: Bed, agent: AgentId, waiter: AgentId) -> RunId:
    """Publish valid, invalid and unaddressed messages, with and without ids."""
    run_id = await bed.started(waiter, "start", {"count": 3, "agent": str(waiter)})
    await bed.signal(run_id, 1, agent=waiter)
    await bed.signal(run_id, 2, agent=waiter, message_id="s")
    await bed.publish(agent, {"n": 1})
    await bed.publish(agent, {"n": 1})
    await bed.publish(agent, {"n": 2}, message_id="m")
    await bed.publish(agent, {"n": 2}, publisher="shop", message_id="m")
    await bed.publish(agent, b"no message")
    await bed.publish(agent, b"no message", message_id="m")
    await bed.signal(run_id, 3, agent=agent)
    unread = bed.subject(agent, "ext.crm").replace(".desk.", ".desk.~")
    await bed.outsider.publish(unread, b"{}")
    return run_id


async def seen(bed: Bed, agent: AgentId, waiter: AgentId, run_id: RunId) -> Seen:
    """Return the outcomes of all messages published before."""
    handled = await bed.payloads(agent)
    await until(lambda: _is_there(bed, NOBODY), "the letter of nobody")
    letters = [*await bed.letters(agent), *await bed.letters(waiter), *await bed.letters(NOBODY)]
    run = await bed.runtime.store.reads.run(run_id)
    signals = await bed.runtime.store.reads.signals(run_id)
    return Seen(
        handled,
        sorted((letter.id, letter.times) for letter in letters),
        (run and run.last_seq, signals),
    )


async def _is_there(bed: Bed, agent: AgentId) -> bool:
    return bool(await bed.letters(agent))


@pytest.mark.item(194, 199, 200, 481)
@pytest.mark.parametrize("how", ["cursors", "epoch", "mail"])
async def test_messages_read_again_are_handled_once_also_without_an_id(bed: Bed, how: str) -> None:
    """Messages, signals and dead letters; those that came without a host are handled, too.

    Each dead letter is in the stream DEAD once.
    """
    agent, waiter = AgentId("desk", f"again-{how}"), AgentId("waiter", f"again-{how}")
    async with bed.running():
        run_id = await publish_all(bed, agent, waiter)
        await until(lambda: _has_taken_two(bed, run_id), "two signals are taken")
        before = await seen(bed, agent, waiter, run_id)
    await set_back(bed, how)
    await bed.publish(agent, {"n": 3})
    async with bed.running():
        after = await seen(bed, agent, waiter, run_id)
        consumers = await bed.api(f"CONSUMER.LIST.{bed.namespace}_MAIL")
        await until(lambda: _are_published(bed, agent, 2), "two letters in DEAD")
        await bed.signal(run_id, 4, agent=waiter)
        result = (await bed.ended(run_id)).result

    assert {consumer["config"]["opt_start_seq"] for consumer in consumers["consumers"]} == {1}
    assert before.handled == [{"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}]
    assert after.handled == [*before.handled, {"n": 3}]
    assert after.letters == before.letters
    assert sum(times for _, times in before.letters) >= 4
    assert result == [1, 2, 4]


async def _are_published(bed: Bed, agent: AgentId, count: int) -> bool:
    subject = bed.subject(agent, "").replace("agent.v1", "dead.v1").rstrip(".")
    info = await bed.api(f"STREAM.INFO.{bed.namespace}_DEAD", {"subjects_filter": subject})
    counts: dict[str, int] = info["state"].get("subjects") or {}
    assert counts.get(subject, 0) <= count
    return counts.get(subject, 0) == count


async def _has_taken_two(bed: Bed, run_id: RunId) -> bool:
    kinds = [entry.kind async for entry in bed.runtime.entries(run_id)]
    return kinds.count("signal.received") == 2


async def test_an_id_counts_also_when_the_same_message_is_published_to_the_next_host(
    bed: Bed,
) -> None:
    """The broker has dropped the id; Postgres has not."""
    agent = AgentId("desk", "next")
    async with bed.running():
        await bed.publish(agent, {"n": 1}, message_id="m")
        await bed.handled(agent)
    await bed.publish(agent, {"n": 1}, message_id="m")
    async with bed.running():
        handled = await bed.handled(agent)
        run = await bed.runtime.store.reads.run(run_id_of_mail(agent, "ext:crm", "m"))

    assert [message.id for message in handled] == ["m"]
    assert run is not None


async def test_messages_for_an_unserved_type_wait_for_its_host(bed: Bed) -> None:
    """It is acknowledged, it is no dead letter, and the first host that serves the type handles it."""
    agent = AgentId("late", "a")
    async with bed.running():
        ack = await bed.publish(agent, {"n": 1})
        await bed.handled(AgentId("desk", "meanwhile"))
        await bed.runtime.register_type("late", lambda id_: Desk(id_, bed.notes))
        handled = await bed.payloads(agent)

        assert await bed.letters(agent) == []
    assert "error" not in ack
    assert handled == [{"n": 1}]
