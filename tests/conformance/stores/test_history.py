"""The contract of every `HistoryProvider`: turns in order, by agent and session, marked with their run."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import ToolCall, ToolResult
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import HistoryProvider
from actors._runtime.parts import MemoryStore
from actors.context import InMemoryHistoryProvider, StoreHistory
from actors.errors import ContractError
from persistence.postgres import open_postgres_history
from persistence.redis import open_redis_history
from tests.conformance.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.harness.servers import Schemas

DESK, CLERK = AgentId("desk", "1"), AgentId("clerk", "1")
ACME_DESK = AgentId("desk", "1", "acme")


@asynccontextmanager
async def memory_history(request: pytest.FixtureRequest) -> AsyncIterator[HistoryProvider]:
    """A history in this process."""
    del request
    yield InMemoryHistoryProvider()


@asynccontextmanager
async def store_history(request: pytest.FixtureRequest) -> AsyncIterator[HistoryProvider]:
    """The history of a runtime whose store is in this process."""
    del request
    yield StoreHistory(MemoryStore(clock=ManualClock()).data.transcripts)


@asynccontextmanager
async def postgres_history(request: pytest.FixtureRequest) -> AsyncIterator[HistoryProvider]:
    """A history of a schema."""
    url = request.getfixturevalue("postgres_server").url
    schemas: Schemas = request.getfixturevalue("schemas")
    async with schemas.lent() as schema, open_postgres_history(url, schema=schema) as history:
        yield history


@asynccontextmanager
async def redis_history(request: pytest.FixtureRequest) -> AsyncIterator[HistoryProvider]:
    """A history of a namespace."""
    url = request.getfixturevalue("redis_server").url
    async with open_redis_history(url, namespace=f"t{secrets.token_hex(6)}") as history:
        yield history


@pytest.fixture(
    params=[
        memory_history,
        store_history,
        pytest.param(postgres_history, marks=pytest.mark.postgres),
        pytest.param(redis_history, marks=pytest.mark.redis),
    ]
)
async def history(request: pytest.FixtureRequest) -> AsyncIterator[HistoryProvider]:
    """Return an empty history on each backend, opened with the fixtures that it requests."""
    async with request.param(request) as opened:
        yield opened


def say(text: str, turn: str | None = None, **metadata: str) -> ChatMessage:
    """Return a turn of the user, with an id if one is given."""
    marks = metadata if turn is None else metadata | {"turn": turn}
    return ChatMessage.of("user", text).model_copy(update={"metadata": marks})


def numbered(*numbers: int) -> list[ChatMessage]:
    """Turns with ids."""
    return [say(str(number), f"run:{number}") for number in numbers]


def as_said(turn: ChatMessage) -> str:
    """Return a turn as JSON without its metadata, whose order has no meaning."""
    return turn.model_dump_json(exclude={"metadata"})


async def texts(history: HistoryProvider, agent: AgentId, session: str) -> list[str]:
    """Return the stored texts of a session."""
    return [turn.text for turn in await history.get_messages(agent, session_id=session)]


@pytest.mark.item(261, 276, 277, 278, 281, 284, 285)
async def test_turns_come_back_in_order(history: HistoryProvider) -> None:
    """One by one, many at once, and in pages."""
    await history.append(DESK, say("0"), session_id="s")
    await history.append_many(DESK, [say("1"), say("2"), say("3")], session_id="s", run_id="r")

    page = await history.get_messages(DESK, session_id="s", limit=2, offset=1)

    assert isinstance(history, HistoryProvider)
    assert await texts(history, DESK, "s") == ["0", "1", "2", "3"]
    assert [turn.text for turn in page] == ["1", "2"]
    assert await history.count_messages(DESK, session_id="s") == 4
    assert await history.count_messages(DESK, session_id="other") == 0


@pytest.mark.item(273, 275, 279)
async def test_sessions_and_agents_do_not_meet(history: HistoryProvider) -> None:
    """Clearing one keeps the others, of another tenant, too. Clearing an empty one is no error."""
    for agent, session in ((DESK, "s"), (DESK, "t"), (CLERK, "s"), (ACME_DESK, "s")):
        await history.append(agent, say(f"{agent} {session}", "same"), session_id=session)

    await history.clear(DESK, session_id="s")
    await history.clear(DESK, session_id="never")

    assert await texts(history, DESK, "s") == []
    assert await texts(history, DESK, "t") == ["desk/1 t"]
    assert await texts(history, CLERK, "s") == ["clerk/1 s"]
    assert await texts(history, ACME_DESK, "s") == [f"{ACME_DESK} s"]


@pytest.mark.item(55, 275, 280, 283)
async def test_one_runs_turns_are_cleared(history: HistoryProvider) -> None:
    """Turns of other runs and of no run keep their order, and the session continues."""
    for text, run in (("0", "a"), ("1", "b"), ("2", "a"), ("3", "")):
        await history.append(DESK, say(text), session_id="s", run_id=run)

    await history.clear_run(DESK, session_id="s", run_id="a")
    await history.clear_run(DESK, session_id="other", run_id="b")
    await history.append(DESK, say("4"), session_id="s", run_id="c")

    assert await texts(history, DESK, "s") == ["1", "3", "4"]
    assert await history.count_messages(DESK, session_id="s") == 3


@pytest.mark.item(275, 280)
async def test_a_runs_turns_are_cleared_of_one_agent_only(history: HistoryProvider) -> None:
    """Programs choose run ids, so tenants may use the same. Turns without a run belong to no run."""
    for agent in (DESK, CLERK, ACME_DESK):
        await history.append_many(agent, numbered(0, 1), session_id="s", run_id="r1")
        await history.append(agent, say("2"), session_id="s")

    await history.clear_run(DESK, session_id="s", run_id="r1")
    for agent in (DESK, CLERK, ACME_DESK):
        await history.clear_run(agent, session_id="s", run_id="")

    assert await texts(history, DESK, "s") == ["2"]
    assert await texts(history, CLERK, "s") == ["0", "1", "2"]
    assert await texts(history, ACME_DESK, "s") == ["0", "1", "2"]


async def test_a_session_of_which_all_runs_were_cleared_begins_anew(
    history: HistoryProvider,
) -> None:
    """The same turns may be added again."""
    await history.append_many(DESK, numbered(0, 1), session_id="s", run_id="a")
    await history.clear_run(DESK, session_id="s", run_id="a")

    assert await texts(history, DESK, "s") == []
    await history.append_many(DESK, numbered(1, 0), session_id="s", run_id="b")

    assert await texts(history, DESK, "s") == ["1", "0"]


async def test_what_is_kept_is_not_shared(history: HistoryProvider) -> None:
    """Returned and given lists and turns are copies."""
    message = say("0", "t", language="de")
    await history.append(DESK, message, session_id="s")
    before = [turn.model_dump_json() for turn in await history.get_messages(DESK, session_id="s")]

    message.metadata.clear()
    message.content.clear()
    came = await history.get_messages(DESK, session_id="s")
    came[0].metadata.clear()
    came[0].content.clear()
    came.clear()

    after = [turn.model_dump_json() for turn in await history.get_messages(DESK, session_id="s")]
    assert after == before


@pytest.mark.item(286)
async def test_a_turn_that_comes_again_is_dropped(history: HistoryProvider) -> None:
    """By its id: alone, in a batch, twice in one batch, and from another run. The first one stays."""
    await history.append_many(DESK, numbered(0, 1), session_id="s", run_id="a")
    await history.append(DESK, say("again", "run:1"), session_id="s", run_id="a")
    await history.append_many(DESK, numbered(0, 1, 2, 2), session_id="s", run_id="b")

    assert await texts(history, DESK, "s") == ["0", "1", "2"]
    assert await history.count_messages(DESK, session_id="s") == 3


async def test_turns_without_an_id_are_kept_each_time(history: HistoryProvider) -> None:
    """Equal texts may occur twice."""
    await history.append_many(DESK, [say("yes"), say("yes"), say("yes", "")], session_id="s")

    assert await texts(history, DESK, "s") == ["yes", "yes", "yes"]


async def test_an_id_counts_in_its_session_until_its_turn_is_cleared(
    history: HistoryProvider,
) -> None:
    """The same id in two sessions is two turns. A cleared turn may be added again."""
    await history.append_many(DESK, numbered(0), session_id="s", run_id="a")
    await history.append_many(DESK, numbered(0), session_id="t", run_id="a")
    await history.clear_run(DESK, session_id="s", run_id="a")
    await history.append_many(DESK, numbered(1, 0), session_id="s", run_id="b")
    await history.clear(DESK, session_id="t")
    await history.append_many(DESK, numbered(0), session_id="t", run_id="b")

    assert await texts(history, DESK, "s") == ["1", "0"]
    assert await texts(history, DESK, "t") == ["0"]


@pytest.mark.item(277)
async def test_a_batch_that_fails_leaves_nothing(history: HistoryProvider) -> None:
    """Neither its turns nor their ids are stored."""
    batch: Sequence[ChatMessage] = [*numbered(0, 1), None]  # type: ignore[list-item]
    with pytest.raises((AttributeError, TypeError, ValueError, ContractError)):
        await history.append_many(DESK, batch, session_id="s")
    assert await history.count_messages(DESK, session_id="s") == 0

    await history.append_many(DESK, numbered(0, 1), session_id="s")

    assert await texts(history, DESK, "s") == ["0", "1"]


@pytest.mark.item(277)
async def test_batches_at_the_same_time_stay_whole(history: HistoryProvider) -> None:
    """The turns of each batch are consecutive. Of two with the same ids one is kept."""
    batches = [numbered(*range(ten, ten + 5)) for ten in range(0, 80, 10)]
    async with asyncio.TaskGroup() as group:
        for batch in [*batches, batches[0]]:
            group.create_task(history.append_many(DESK, batch, session_id="s"))

    numbers = list(map(int, await texts(history, DESK, "s")))

    assert sorted(numbers) == [int(turn.text) for batch in batches for turn in batch]
    assert all(
        numbers[at : at + 5] == list(range(numbers[at], numbers[at] + 5)) for at in range(0, 40, 5)
    )


@pytest.mark.item(278)
@pytest.mark.parametrize(
    ("limit", "offset", "page"),
    [
        (None, 0, "01234"),
        (None, 2, "234"),
        (None, 4, "4"),
        (None, 5, ""),
        (None, 99, ""),
        (0, 0, ""),
        (1, 0, "0"),
        (1, 4, "4"),
        (1, 5, ""),
        (5, 0, "01234"),
        (6, 0, "01234"),
        (2, 4, "4"),
        (2**31 - 1, 1, "1234"),
    ],
)
async def test_pages_are_exact_at_their_edges(
    history: HistoryProvider, limit: int | None, offset: int, page: str
) -> None:
    """A page begins at `offset`, has at most `limit` turns and ends with the session."""
    await history.append_many(DESK, numbered(*range(5)), session_id="s")

    turns = await history.get_messages(DESK, session_id="s", limit=limit, offset=offset)

    assert "".join(turn.text for turn in turns) == page


@pytest.mark.item(278)
async def test_a_page_is_not_negative(history: HistoryProvider) -> None:
    """A negative limit or offset raises an error."""
    await history.append_many(DESK, numbered(0, 1), session_id="s")

    for limit, offset in ((-1, 0), (None, -1), (1, -2)):
        with pytest.raises(ContractError):
            await history.get_messages(DESK, session_id="s", limit=limit, offset=offset)


@pytest.mark.item(282)
async def test_nothing_is_ever_trimmed(history: HistoryProvider) -> None:
    """Two thousand turns and a long one are returned unchanged."""
    turns = [*numbered(*range(2_000)), say("x" * 300_000, "long")]
    for at in range(0, len(turns), 500):
        await history.append_many(DESK, turns[at : at + 500], session_id="s")

    stored = await history.get_messages(DESK, session_id="s")

    assert stored == turns
    assert await history.count_messages(DESK, session_id="s") == len(stored)


async def test_a_turn_keeps_everything_it_came_with(history: HistoryProvider) -> None:
    """Calls, results, media, blocks of unknown types with their fields, names, and its parent."""
    unknown = {"type": "thinking", "text": "hm", "signature": "c2ln", "nested": {"a": [1, None]}}
    image = {"type": "image", "data": "aGk=", "media_type": "image/png"}
    call = ToolCall(id="c", name="look", arguments={"q": "Größe \u2028 😀", "n": [1.5, True]})
    answer = ToolResult(id="c", name="look", text="seen", is_error=True)
    turns = [
        say("", "t0", parent="t-1"),
        ChatMessage(
            role="assistant",
            content=[ContentBlock.model_validate(unknown), call.block()],
            name="helper",
            metadata={"turn": "t1", "parent": "t0", "tokens": "12", "pinned": "1"},
        ),
        ChatMessage(role="tool", content=[answer.block(), ContentBlock.model_validate(image)]),
        ChatMessage(role="system", content=[], metadata={"tokens": "many", "parent": ""}),
        say("0 \x00 {}\\ \u2028", "t4", tokens="012"),
    ]
    await history.append_many(DESK, turns, session_id="s ä/{😀}:%", run_id="r ä")

    stored = await history.get_messages(DESK, session_id="s ä/{😀}:%")

    assert [as_said(turn) for turn in stored] == [as_said(turn) for turn in turns]
    has_metadata = [
        sent_turn.metadata.items() <= turn.metadata.items()
        for sent_turn, turn in zip(turns, stored, strict=True)
    ]
    assert all(has_metadata)
    assert stored[1].parent == "t0"


@pytest.mark.item(277)
@pytest.mark.parametrize("bad", ["\ud800", "a\udfff"])
async def test_half_a_surrogate_pair_is_refused_whole(history: HistoryProvider, bad: str) -> None:
    """In a text, a name or metadata: no turn of the batch is kept, and the session goes on."""
    if isinstance(history, InMemoryHistoryProvider | StoreHistory):
        pytest.skip("memory keeps any text")
    for turn in (
        say(bad),
        say("x", bad),
        say("x", k=bad),
        say("x").model_copy(update={"name": bad}),
    ):
        with pytest.raises(ContractError):
            await history.append_many(DESK, [say("first"), turn], session_id="s")

    await history.append(DESK, say("next"), session_id="s")

    assert await texts(history, DESK, "s") == ["next"]
