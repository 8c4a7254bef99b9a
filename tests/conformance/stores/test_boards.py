"""The contract of every `TaskStore`: boards by conversation and agent, separate per tenant."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from actors._inmemory.boards import InMemoryTaskBoards
from actors._kernel import board_rules as rules
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.data import Task, TaskList, TaskStatus, TaskStore, TaskStores
from actors.errors import ContractError, InvalidTextError, OtherTenantError
from persistence._postgres.data.boards import PgTaskBoards
from tests.conformance.stores.stored import lent_links

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

S = TaskStatus
DESK, CLERK = AgentId("desk", "1", "acme"), AgentId("clerk", "1", "acme")
OTHER = AgentId("desk", "1", "bolt")
Place: TypeAlias = tuple[str, AgentId]
"""A conversation and an agent."""


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[TaskStores]:
    """Boards of this process."""
    del request
    yield InMemoryTaskBoards()


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest) -> AsyncIterator[TaskStores]:
    """Boards of a schema."""
    async with lent_links(request, 4) as links:
        yield PgTaskBoards(links)


@pytest.fixture(params=[in_memory, pytest.param(in_postgres, marks=pytest.mark.postgres)])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[TaskStores]:
    """No boards on each backend."""
    async with request.param(request) as opened:
        yield opened


def tasks(*ids: str, **fields: Any) -> list[Task]:
    """Return tasks with these ids."""
    return [Task(id=id_, title=f"do {id_}", **fields) for id_ in ids]


def plain(board: TaskList | None) -> TaskList | None:
    """Return a board without the times of its changes."""
    if board is None:
        return None
    unstamped = tuple(task.model_copy(update={"updated_at": None}) for task in board.tasks)
    return board.model_copy(update={"tasks": unstamped})


@pytest.mark.item(324, 326, 328)
async def test_each_agent_of_a_conversation_has_its_board(stores: TaskStores) -> None:
    """Tasks get numbers and times. A new board replaces the old one, and another tenant sees neither."""
    store = stores.of("acme")
    odd = Task(id="a\"'%_", title="1", order=77, note="\U0001f600", max_retries=7)
    first = await store.create_task_list("c", DESK, [odd, *tasks("b")], title="plan")
    await store.create_task_list("c", CLERK, tasks("a"))
    await store.create_task_list("d", DESK, [])
    await stores.of("bolt").create_task_list("c", OTHER, tasks("z"))

    assert isinstance(store, TaskStore)
    assert (first.title, first.agent_id, first.conversation_id) == ("plan", "acme:desk/1", "c")
    assert [(task.order, task.updated_at is not None) for task in first.tasks] == [
        (0, True),
        (1, True),
    ]
    assert first.tasks[0].model_copy(update={"order": 77, "updated_at": None}) == odd
    assert await store.get_task_list("c", DESK) == first
    more = await store.add_tasks("c", DESK, tasks("c", "d"))
    assert [(task.id, task.order) for task in more.tasks[2:]] == [("c", 2), ("d", 3)]
    assert [board.agent_id for board in await store.get_boards("c")] == [
        "acme:clerk/1",
        "acme:desk/1",
    ]
    assert (await store.create_task_list("c", DESK, tasks("n"))).title == ""
    assert [board.tasks[0].id for board in await store.get_boards("c")] == ["a", "n"]
    assert [board.tasks[0].id for board in await stores.of("bolt").get_boards("c")] == ["z"]
    assert await store.get_boards("nothing") == []
    assert await store.get_task_list("nothing", DESK) is None


@pytest.mark.item(327, 329, 330)
async def test_a_task_changes_by_the_rules_only(stores: TaskStores) -> None:
    """A refused change leaves the board as it was. The error says what is possible."""
    store = stores.of("acme")
    await store.create_task_list("c", DESK, tasks("a", max_retries=2))

    with pytest.raises(ContractError, match="is pending and cannot become succeeded"):
        await store.update_status("c", DESK, "a", status=S.SUCCEEDED)
    with pytest.raises(ContractError, match="only a failed or abandoned"):
        await store.force_retry("c", DESK, "a")
    task = await store.update_status("c", DESK, "a", status=S.IN_PROGRESS, note="begun")
    assert (task.status, task.note) == (S.IN_PROGRESS, "begun")
    task = await store.update_status("c", DESK, "a", status=S.FAILED)
    assert (task.status, task.note) == (S.FAILED, "begun")
    counts = [await store.increment_retry("c", DESK, "a") for _ in range(3)]
    assert [t and (t.status, t.retry_count) for t in counts] == [
        (S.IN_PROGRESS, 1),
        (S.IN_PROGRESS, 2),
        None,
    ]
    await store.update_status("c", DESK, "a", status=S.ABANDONED)
    forced = await store.force_retry("c", DESK, "a")
    assert (forced.status, forced.retry_count) == (S.IN_PROGRESS, 0)
    await store.update_status("c", DESK, "a", status=S.SUCCEEDED)
    with pytest.raises(ContractError, match="is succeeded and cannot"):
        await store.increment_retry("c", DESK, "a")
    board = await store.get_task_list("c", DESK)
    assert board is not None
    assert board.tasks[0].status is S.SUCCEEDED


@pytest.mark.item(331)
async def test_a_conversation_that_ends_well_has_no_task_in_progress(stores: TaskStores) -> None:
    """Changed boards are returned. Other states, conversations and tenants stay as they are."""
    store, other = stores.of("acme"), stores.of("bolt")
    for conversation, agent, of in (("c", DESK, store), ("d", DESK, store), ("c", OTHER, other)):
        await of.create_task_list(conversation, agent, tasks("a", status=S.IN_PROGRESS))
    await store.add_tasks("c", DESK, tasks("p") + tasks("f", status=S.FAILED))
    await store.create_task_list("c", CLERK, tasks("p"))

    [changed] = await store.settle_conversation("c")
    assert [task.status for task in changed.tasks] == [S.SUCCEEDED, S.PENDING, S.FAILED]
    assert await store.settle_conversation("c") == []
    assert await store.get_task_list("c", DESK) == changed
    for of, conversation in ((store, "d"), (other, "c")):
        [untouched] = await of.get_boards(conversation)
        assert untouched.tasks[0].status is S.IN_PROGRESS


@pytest.mark.item(324, 326, 327, 328, 329, 330)
async def test_bad_input_is_refused_before_anything_changes(stores: TaskStores) -> None:
    """Invalid or too long texts, too large boards, and agents of other tenants are refused."""
    store = stores.of("acme")
    board = await store.create_task_list("c", DESK, tasks("a"))
    text = "x" * 5_000
    calls: list[tuple[Callable[..., Awaitable[object]], tuple[Any, ...], dict[str, Any], Any]] = [
        (store.create_task_list, ("c\x00", DESK, []), {}, InvalidTextError),
        (store.create_task_list, ("", DESK, []), {}, ContractError),
        (store.create_task_list, ("c", OTHER, []), {}, OtherTenantError),
        (store.create_task_list, ("c", DESK, tasks("b", "b")), {}, ContractError),
        (store.create_task_list, ("c", DESK, tasks("b")), {"title": "\ud800"}, InvalidTextError),
        (store.create_task_list, ("c", DESK, tasks(*map(str, range(1_001)))), {}, ContractError),
        (store.add_tasks, ("c", DESK, tasks("\ud800")), {}, InvalidTextError),
        (store.add_tasks, ("c", DESK, tasks("")), {}, ContractError),
        (store.add_tasks, ("c", DESK, tasks("b", description=text)), {}, InvalidTextError),
        (store.add_tasks, ("c", DESK, tasks("b", max_retries=2**31)), {}, ContractError),
        (store.add_tasks, ("c", DESK, tasks("a")), {}, ContractError),
        (store.add_tasks, ("c", DESK, tasks(*map(str, range(1_000)))), {}, ContractError),
        (store.add_tasks, ("nowhere", DESK, []), {}, KeyError),
        (store.update_status, ("c", DESK, "b"), {"status": S.FAILED}, KeyError),
        (store.update_status, ("c", DESK, "a\x00"), {"status": S.FAILED}, InvalidTextError),
        (
            store.update_status,
            ("c", DESK, "a"),
            {"status": S.IN_PROGRESS, "note": text},
            InvalidTextError,
        ),
        (store.update_status, ("c", OTHER, "a"), {"status": S.IN_PROGRESS}, OtherTenantError),
        (store.increment_retry, ("nowhere", DESK, "a"), {}, KeyError),
        (store.force_retry, ("c", DESK, "b"), {}, KeyError),
        (store.get_task_list, ("c", OTHER), {}, OtherTenantError),
        (store.get_boards, ("\ud800",), {}, InvalidTextError),
        (store.settle_conversation, ("\x00",), {}, InvalidTextError),
    ]

    for call, args, options, error in calls:
        with pytest.raises(error):
            await call(*args, **options)
    assert await store.get_boards("c") == [board]


@pytest.mark.item(324, 329, 334)
async def test_a_call_with_a_known_key_changes_nothing(stores: TaskStores) -> None:
    """It returns the stored board, also if other calls have changed it in the meantime."""
    store = stores.of("acme")
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.create_task_list("c", DESK, tasks("a", "b", max_retries=1), key="k1"),
        lambda: store.increment_retry("c", DESK, "a", key="k2"),
        lambda: store.update_status("c", DESK, "b", status=S.ABANDONED, key="k3"),
        lambda: store.force_retry("c", DESK, "b", key="k4"),
        lambda: store.add_tasks("c", DESK, tasks("x"), key="k5"),
        lambda: store.settle_conversation("c", key="k6"),
    ]

    for call in calls:
        first = await call()
        await store.add_tasks("c", DESK, tasks(str(calls.index(call))))
        before = await store.get_task_list("c", DESK)
        second = await call()
        assert await store.get_task_list("c", DESK) == before
        if isinstance(first, Task):
            assert second == first
        else:
            assert second in (before, [before])
    with pytest.raises(InvalidTextError, match="key of a call"):
        await store.settle_conversation("c", key="\x00")


@pytest.mark.item(325, 333)
async def test_changes_at_once_lose_nothing(stores: TaskStores) -> None:
    """A hundred concurrent changes of one board, of each kind, and retries up to their limit."""
    store, ids = stores.of("acme"), [f"t{n}" for n in range(25)]
    await store.create_task_list("c", DESK, [*tasks(*ids), *tasks("retried", max_retries=20)])

    retrying = asyncio.gather(*(store.increment_retry("c", DESK, "retried") for _ in range(50)))
    await asyncio.gather(
        *(store.update_status("c", DESK, id_, status=S.IN_PROGRESS, note=id_) for id_ in ids),
        *(store.add_tasks("c", DESK, tasks(f"new{n}", f"more{n}")) for n in range(25)),
    )
    retried = await retrying
    board = await store.get_task_list("c", DESK)
    assert board is not None
    by_id = {task.id: task for task in board.tasks}
    assert [by_id[id_].note for id_ in ids] == ids
    assert [task.order for task in board.tasks] == list(range(76))
    assert by_id["retried"].retry_count == 20
    assert sorted(t.retry_count for t in retried if t is not None) == [*range(1, 21)]


@pytest.mark.costly
@pytest.mark.item(325, 333)
async def test_many_boards_change_at_once(stores: TaskStores) -> None:
    """Each board gets its own change. A concurrent settle is applied to a whole board or not at all."""
    store = stores.of("acme")
    agents = [AgentId("desk", str(n), "acme") for n in range(1_000)]
    await asyncio.gather(*(store.create_task_list("c", agent, tasks("a", "b")) for agent in agents))

    await asyncio.gather(
        *(store.update_status("c", agent, "a", status=S.IN_PROGRESS) for agent in agents),
        *(store.settle_conversation("c") for _ in range(4)),
    )
    await asyncio.gather(*(store.settle_conversation("c") for _ in range(2)))
    boards = await store.get_boards("c")
    assert [[task.status for task in board.tasks] for board in boards] == [
        [S.SUCCEEDED, S.PENDING]
    ] * 1_000


@pytest.mark.item(324, 326, 327, 328, 329, 330, 331, 333)
async def test_any_calls_do_what_the_rules_say(stores: TaskStores) -> None:
    """Random calls on a few boards of two tenants give the results, errors and boards of the pure rules."""
    draw, boards = Random(7), dict[Place, TaskList]()
    for _ in range(150):
        agent, conversation = draw.choice([DESK, CLERK, OTHER]), draw.choice("cd")
        store = stores.of(agent.tenant)
        answer, expected = await played(draw, store, boards, (conversation, agent))

        assert answer == expected
        assert plain(await store.get_task_list(conversation, agent)) == boards.get(
            (conversation, agent)
        )


async def played(
    draw: Random, store: TaskStore, boards: dict[Place, TaskList], at: Place
) -> tuple[object, object]:
    """Execute one call on a store and on the model's boards; return both results."""
    (conversation, agent), tenant = at, at[1].tenant
    board, id_ = boards.get((conversation, agent)), draw.choice("abcde")
    new, status = tasks(*draw.sample("abcde", draw.randint(0, 2)), max_retries=1), draw.choice([*S])
    verb = draw.choice(["create", "add", "status", "status", "status", "retry", "force", "settle"])
    if verb == "settle":
        mine = {
            key: b
            for key, b in boards.items()
            if key[0] == conversation and key[1].tenant == tenant
        }
        after_all = {key: rules.settled(b, now=None) for key, b in mine.items()}
        boards |= {key: b for key, b in after_all.items() if b is not None}
        settled_boards = await store.settle_conversation(conversation)
        expected = [b for _, b in sorted(after_all.items(), key=str) if b is not None]
        return [plain(b) for b in settled_boards], expected
    calls: dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[Any], TaskList | None]]] = {
        "create": (
            lambda: store.create_task_list(conversation, agent, new, title=id_),
            lambda _: rules.created(conversation, agent, new, title=id_, now=None),
        ),
        "add": (
            lambda: store.add_tasks(conversation, agent, new),
            lambda b: rules.with_tasks(b, new, now=None),
        ),
        "status": (
            lambda: store.update_status(conversation, agent, id_, status=status, note=verb),
            lambda b: rules.with_status(b, id_, status=status, note=verb, now=None),
        ),
        "retry": (
            lambda: store.increment_retry(conversation, agent, id_),
            lambda b: rules.with_retry(b, id_, now=None),
        ),
        "force": (
            lambda: store.force_retry(conversation, agent, id_),
            lambda b: rules.with_forced_retry(b, id_, now=None),
        ),
    }
    call, rule = calls[verb]
    try:
        if board is None and verb != "create":
            raise rules.no_board(conversation, agent)
        after = rule(board)
    except (KeyError, ContractError) as exc:
        with pytest.raises(type(exc)) as caught:
            await call()
        return str(caught.value), str(exc)
    if after is not None:
        boards[conversation, agent] = after
    done = await call()
    if isinstance(done, Task):
        assert after is not None
        return done.model_copy(update={"updated_at": None}), rules.task_of(after, id_)
    return plain(done), after
