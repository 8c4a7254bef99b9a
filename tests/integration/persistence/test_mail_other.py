"""Signals, bytes that are no mail, the stream's record, and connections lost in mid-call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.transport import Cursor, SentSignal, StaleStream, Undecodable
from actors.errors import ContractError
from tests.conformance.bed import message
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import sql, store_of
from tests.integration.persistence.mailing import ANNA, BERT, CREATED, STATE, ids_of, post_office

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.stores.transport import Received
    from tests.integration.persistence.mailing import Post

BROKEN = Undecodable("the body is no JSON", b"\xff\x00nonsense")


@pytest.fixture
async def post(postgres_dsn: str, schema: str) -> AsyncIterator[Post]:
    """A host that sends everything by the broker."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as post:
        yield post


def signal(post: Post, run_id: RunId, id: str, *, to: AgentId = BERT) -> Received:  # noqa: A002
    """A signal from outside, addressed to an agent."""
    return post.read(id, to=to, content=SentSignal(run_id, "go", {"n": id}), sourced=True)


async def test_a_signal_is_buffered_once_for_its_run(post: Post) -> None:
    """The worker is told of the run once, however many signals came."""
    run = await post.begin(BERT)
    items = [signal(post, run.run_id, name) for name in ("s1", "s2", "s1")]

    first = await post.ingest(*items)
    again = await post.ingest(*items)

    assert first.signalled == ((run.run_id, BERT),)
    assert again.signalled == ()
    signals = await post.store.reads.signals(run.run_id)
    assert [(signal.name, signal.payload) for signal in signals] == [
        ("go", {"n": "s1"}),
        ("go", {"n": "s2"}),
    ]


@pytest.mark.parametrize("foreign", [AgentId("clerk", "bert", "evil"), AgentId("clerk", "eve")])
async def test_a_signal_reaches_only_runs_of_the_agent_it_was_sent_to(
    post: Post, foreign: AgentId
) -> None:
    """Another tenant's or agent's subject, with a known run id: one dead letter, and no signal."""
    run = await post.begin(BERT)
    item = signal(post, run.run_id, "s1", to=foreign)

    for _ in range(2):
        outcome = await post.ingest(item, agent=foreign)
        assert outcome.signalled == ()

    assert await post.store.reads.signals(run.run_id) == []
    (letter,) = await post.store.lists.dead_letters()
    assert (letter.agent_id, letter.reason) == (foreign, "explicit")
    assert run.run_id in letter.last_error
    (row,) = await post.outbox()
    assert (row.dead_letter, row.message.target) == ("explicit", foreign)
    with pytest.raises(ContractError, match="signal"):
        await post.store.operators.redrive([letter.id])


async def test_a_signal_for_a_run_that_ended_is_dropped(post: Post) -> None:
    """Nobody waits for it any more."""
    run = await post.begin(BERT)
    await run.complete()

    assert (await post.ingest(signal(post, run.run_id, "s1"))).signalled == ()

    assert await post.store.reads.signals(run.run_id) == []
    assert await post.store.lists.dead_letters() == []


async def test_bytes_that_are_no_message_become_one_dead_letter(post: Post) -> None:
    """However often they are read; the mailbox goes on, and nobody can redrive them."""
    items = [post.read("bad", content=BROKEN, sourced=True), post.read("a", sourced=True)]

    assert ids_of((await post.ingest(*items)).arrived) == ["a"]
    post.stream = await post.store.mail.next_stream_epoch(post.stream, CREATED)
    assert (await post.ingest(*items)).arrived == ()

    (letter,) = await post.store.lists.dead_letters()
    assert (letter.agent_id, letter.reason, letter.attempts) == (BERT, "undecodable", 0)
    assert letter.last_error == "the body is no JSON"
    assert letter.message.payload == {"encoding": "base64", "data": "/wBub25zZW5zZQ==", "bytes": 10}
    assert await post.on_the_way() == ["bad"]
    assert await post.inbox() == ["a"]
    with pytest.raises(ContractError, match="the body is no JSON"):
        await post.store.operators.redrive([letter.id])
    await post.store.outbox.forget(await post.outbox())
    assert await post.outbox() == []


async def test_equal_reasons_of_one_publisher_are_one_dead_letter(post: Post) -> None:
    """With the bytes of the first and their number, in one batch or in several; others have their own."""
    other = Undecodable("too large", b"x")
    items = [post.read(f"m{n}", content=BROKEN, sourced=True) for n in range(50)]
    await post.ingest(*items[:20])
    await post.ingest(*items[10:])
    stranger = replace(post.read("s", content=BROKEN, sourced=True), sender="ext:stranger")
    await post.ingest(stranger, post.read("o", content=other, sourced=True), *items)

    letters = [
        (letter.message.id, letter.times) for letter in await post.store.lists.dead_letters()
    ]

    assert sorted(letters) == [("m0", 50), ("o", 1), ("s", 1)]
    assert sorted(await post.on_the_way()) == ["m0", "o", "s"]


async def test_a_message_of_ours_that_arrives_broken_keeps_its_place(post: Post) -> None:
    """It takes its outbox row with it, when it is its turn, so that its successors do not wait."""
    await post.send(await post.begin(), "a", "b", "c")
    early = post.read("b", content=BROKEN)

    assert (await post.ingest(early)).arrived == ()
    assert await post.store.lists.dead_letters() == []
    outcome = await post.ingest(post.read("a"), post.read("b", content=BROKEN), post.read("c"))

    assert ids_of(outcome.arrived) == ["a", "c"]
    (row,) = await post.outbox()
    assert (row.message.id, row.dead_letter) == ("b", "undecodable")


async def test_a_payload_the_database_cannot_hold_is_a_dead_letter_too(post: Post) -> None:
    """Its neighbours in the batch arrive."""
    content = message({"x": "\ud800"}, to=BERT, id="bad")
    bad = replace(post.read("bad", sourced=True), content=content)

    assert ids_of((await post.ingest(bad, post.read("a", sourced=True))).arrived) == ["a"]

    assert [letter.reason for letter in await post.store.lists.dead_letters()] == ["undecodable"]


async def test_a_deployment_has_one_id_for_ever(post: Post) -> None:
    """Every host reads the same."""
    async with post.bed.rival() as rival:
        assert rival.store is not post.bed.store
        assert await post.store.mail.deployment() == await store_of(rival).mail.deployment()


async def test_the_streams_record_knows_the_furthest_cursor(post: Post) -> None:
    """Of the present epoch only; a second host that begins the next one does not begin two."""
    assert post.stream.highest is None
    await post.store.mail.ingest(post.batch(upto=5))
    await post.store.mail.ingest(post.batch(agent=ANNA, upto=8))

    stream = await post.store.mail.stream(STATE)
    later = CREATED + timedelta(days=1)
    newer = [await post.store.mail.next_stream_epoch(stream, later) for _ in range(2)]

    assert stream.highest == Cursor(1, 8, CREATED + timedelta(seconds=8))
    assert [(state.epoch, state.created, state.highest) for state in newer] == [
        (2, later, None)
    ] * 2
    assert await post.store.mail.stream(STATE) == newer[0]


async def test_low_water_is_the_lowest_cursor_of_all_shards(post: Post) -> None:
    """Nobody's mail is purged: a shard that nobody read yet counts as 0, and so does a new epoch."""
    bed = post.bed
    for n, lease in enumerate(bed.leases.values()):
        assert await post.store.mail.low_water(post.stream) == 0
        await post.store.mail.ingest(replace(post.batch(upto=10 + n), lease=lease))
    assert await post.store.mail.low_water(post.stream) == 10

    await post.store.mail.account_for([AgentId("nova", "1")])
    assert await post.store.mail.low_water(post.stream) == 0
    newer = await post.store.mail.next_stream_epoch(post.stream, CREATED)
    assert await post.store.mail.low_water(post.stream) == 0
    assert await post.store.mail.low_water(newer) == 0


async def test_messages_of_undeclared_agents_get_a_shard_each(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """One for all of an undeclared type, one for each single agent, none for a partition."""
    solo_agent = AgentId("solo", "1")
    await post.store.shards.declare(Serves(agents=(solo_agent,)))
    agents = [
        AgentId("nova", "1"),
        AgentId("nova", "2"),
        BERT,
        solo_agent,
        AgentId("solo", "2", "t"),
    ]

    assert await post.store.mail.account_for(agents) == 2
    assert await post.store.mail.account_for(agents) == 0
    assert await post.store.mail.account_for([]) == 0

    rows = await sql(
        postgres_dsn, schema, "select shard from shards where shard not like 'p:%' order by shard"
    )
    assert [row["shard"] for row in rows] == ["i:default:solo/1", "i:t:solo/2", "u:nova"]


async def test_a_type_cannot_change_its_kind_while_its_messages_are_on_the_way(post: Post) -> None:
    """Its outbox rows belong to its present shards."""
    solo = AgentId("solo", "1")
    await post.bed.claim(Serves(agents=(solo,)))
    run = await post.begin(solo)
    await post.send(run, "a")
    await run.complete()
    await post.store.shards.release(list(post.bed.leases.values()))
    async with post.bed.rival() as rival:
        with pytest.raises(ContractError):
            await rival.store.shards.declare(Serves(types=("solo",)))
        await rival.claim(Serves(types=("desk", "clerk")))


@pytest.mark.item(59)
@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_batch_whose_answer_is_lost_is_reported_as_if_it_was_not(
    postgres_dsn: str, schema: str, what: str
) -> None:
    """What became a row is reported, in order; what was refused or not its turn is not."""
    async with (
        FaultProxy.to(postgres_dsn) as proxy,
        post_office(proxy.through(postgres_dsn), schema, local_delivery=False) as post,
    ):
        await post.send(await post.begin(), "needle", "b", "c", "d")
        receiver = await post.begin(BERT)
        items = [post.read(name) for name in ("needle", "b", "d")]
        stale = replace(post.batch(post.read("x", to=ANNA), agent=ANNA), upto=Cursor(99, 1))
        if what == "request":
            loss = proxy.lose_request(request_has=b"needle")
        else:
            loss = proxy.lose_response(request_has=b"needle")

        outcome, other = await asyncio.gather(
            post.ingest(*items, signal(post, receiver.run_id, "s")), post.store.mail.ingest(stale)
        )

        assert loss.happened.is_set()
        assert ids_of(outcome.arrived) == ["needle", "b"]
        assert outcome.signalled == ((receiver.run_id, BERT),)
        assert other == StaleStream()
        assert await post.inbox() == ["needle", "b"]
        assert await post.on_the_way() == ["c", "d"]
