"""Text that no store accepts: refused at the call; a run whose commit is refused anyway is parked."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from actors._kernel.agent.agent import Supervision
from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, TopicId, run_id_of_mail
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import ActorsError, ContractError, StoreRefusedError, UnknownRunError
from tests.behaviour.bed import FAST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors._kernel.runtime.ids import HostIncarnation
    from actors._kernel.stores.run_store import RunStore
    from actors._kernel.stores.runs import CommitStore, ReadStore
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

_LETTERS = random.Random(7)
TEXTS: dict[str, Any] = {
    "NUL": "a\x00b",
    "surrogate": "a\ud800b",
    "long": "".join(_LETTERS.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(9_000)),
    "wide": "".join(chr(_LETTERS.randrange(0x4E00, 0x9FFF)) for _ in range(1_000)),
    "very long": "x" * 3_000_000,
    "number": 7,
}
"""Each is refused as a name."""
FREE = {"cancel reason", "approval", "metadata"}
"""Free text fields: up to the length of a page."""


async def _return_one() -> int:
    return 1


def _verbs(bed: Bed, ctx: RunContext, text: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    other = AgentId(ctx.agent_id.type, "other")
    boot = Message.of(other, 1)
    return {
        "state.set": lambda: ctx.state.set(text, 1),
        "state.get": lambda: ctx.state.get(text),
        "state.clear": lambda: ctx.state.clear(text),
        "patched": lambda: ctx.patched(text),
        "step": lambda: ctx.step(text, _return_one),
        "tool": lambda: ctx.tool(text),
        "join": lambda: ctx.join(text),
        "status": lambda: ctx.status(text),
        "cancel": lambda: ctx.cancel(text),
        "cancel reason": lambda: ctx.cancel("nobody", reason=text),
        "signal": lambda: ctx.sleep_until_signal(text),
        "ask key": lambda: ctx.ask(other, 1, timeout=1, idempotency_key=text),
        "follow": lambda: ctx.follow(text),
        "follow mode": lambda: ctx.follow("news", mode=text),
        "unfollow": lambda: ctx.unfollow(text),
        "emit": lambda: ctx.emit(text, 1),
        "emit source": lambda: ctx.emit(f"news/{text}", 1),
        "spawn type": lambda: ctx.spawn(text),
        "spawn key": lambda: ctx.spawn(ctx.agent_id.type, key=text),
        "spawn session": lambda: ctx.spawn(
            other, supervision=Supervision.model_construct(run_id="r", root_id="r", session_id=text)
        ),
        "spawn policy": lambda: ctx.spawn(
            other, retry_policy=RetryPolicy.model_construct(non_retryable=(text,))
        ),
        "metadata": lambda: ctx.spawn(other, Message(boot.id, other, 1, metadata={"about": text})),
        "approval": lambda: ctx.approval(text, timeout=0.01),
        "reply": lambda: ctx.reply(Message(text, other, 1, reply_to=ctx.run_id), 1),
        "reply to": lambda: ctx.reply(Message("m", other, 1, reply_to=text), 1),
    }


VERBS = (
    "state.set",
    "state.get",
    "state.clear",
    "patched",
    "step",
    "tool",
    "join",
    "status",
    "cancel",
    "cancel reason",
    "signal",
    "ask key",
    "follow",
    "follow mode",
    "unfollow",
    "emit",
    "emit source",
    "spawn type",
    "spawn key",
    "spawn session",
    "spawn policy",
    "metadata",
    "approval",
    "reply",
    "reply to",
)


@pytest.mark.parametrize("verb", VERBS)
async def test_text_that_no_store_accepts_is_refused_at_the_call(bed: Bed, verb: str) -> None:
    """By each method, before the store is called.

    The error names the remedy, and the run is started once.
    """
    begun = 0

    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        nonlocal begun
        del inbox
        begun += 1
        messages = []
        for text in TEXTS.values():
            try:
                await _verbs(bed, ctx, text)[verb]()
            except (ContractError, TypeError, AttributeError) as exc:
                messages.append(f"{type(exc).__name__}: {exc}")
            else:
                messages.append("no error")
        await ctx.step("after", _return_one)
        return messages

    messages = await bed.play(act)

    assert begun == 1 or (verb == "approval" and begun <= 3)  # two are awaited by suspended runs
    for name, text in zip(TEXTS, messages, strict=True):
        if name in ("long", "wide", "number") and verb in ("emit source", "spawn key", *FREE):
            continue  # a page of reasons is one, and 7 is a fine part of another text
        assert text != "no error", name
        assert len(text) < 400 or name in ("long", "wide", "very long"), text[:400]


@pytest.mark.parametrize("verb", ["join", "status", "cancel"])
async def test_an_odd_run_id_is_an_unknown_run(bed: Bed, verb: str) -> None:
    """Any text is accepted as an id; the store is not called."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        count = 0
        for text in ("", *TEXTS.values()):
            with pytest.raises(UnknownRunError):
                await _verbs(bed, ctx, text)[verb]()
            count += 1
        return count

    assert await bed.play(act) == 7


@pytest.mark.parametrize("verb", VERBS)
async def test_empty_text_starts_a_run_once(bed: Bed, verb: str) -> None:
    """It is a valid name, or refused; the run is not started repeatedly."""
    begun = 0

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        nonlocal begun
        del inbox
        begun += 1
        call = _verbs(bed, ctx, "")[verb]
        if verb in ("signal", "spawn session", "spawn policy", "metadata"):
            return "not waited for"
        try:
            await call()
        except ActorsError as exc:
            return str(exc)
        return "fine"

    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    row = await bed.ended(run_id)

    assert row.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)
    assert begun <= 2


@pytest.mark.parametrize(
    "door",
    [
        "signal",
        "signal id",
        "cancel",
        "cancel reason",
        "result",
        "status",
        "resolve",
        "fork",
        "redrive",
        "entries",
        "submit id",
        "submit session",
        "submit conflict",
        "submit priority",
        "send id",
        "send sender",
        "send metadata",
        "publish id",
        "publish source",
        "follow source",
        "schedule",
        "schedule name",
        "approve",
        "approve by",
        "limit",
    ],
)
async def test_every_entry_point_refuses_text_that_no_store_accepts(bed: Bed, door: str) -> None:
    """With an error about the argument. Nothing is written and no error of a store is raised."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.sleep_until_signal("go")

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    runtime = bed.runtime

    async def entries(text: Any) -> None:
        async for _ in runtime.entries(text):
            pass

    doors: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "signal": lambda text: runtime.signal(run_id, text, 1),
        "signal id": lambda text: runtime.signal(run_id, "go", 1, message_id=text),
        "cancel": runtime.cancel,
        "cancel reason": lambda text: runtime.cancel(run_id, reason=text),
        "result": runtime.result,
        "status": runtime.status,
        "resolve": runtime.resolve,
        "fork": lambda text: runtime.fork_run(text, at_seq=0),
        "redrive": runtime.redrive_run,
        "entries": entries,
        "submit id": lambda text: runtime.submit(agent, Message(text, agent, 1)),
        "submit session": lambda text: runtime.submit(agent, 1, session_id=text),
        "submit conflict": lambda text: runtime.submit(agent, 1, on_conflict=text),
        "submit priority": lambda text: runtime.submit(agent, 1, priority=text),
        "send id": lambda text: runtime.send(agent, Message(text, agent, 1)),
        "send sender": lambda text: runtime.send(agent, 1, sender=f"client:{text}"),
        "send metadata": lambda text: runtime.send(
            agent, Message("m", agent, 1, metadata={text: ""})
        ),
        "publish id": lambda text: runtime.publish("t", "s", Message(text, TopicId("t"), 1)),
        "publish source": lambda text: runtime.publish("t", text, 1),
        "follow source": lambda text: runtime.follow(agent, "t", text),
        "schedule": runtime.schedules.get,
        "schedule name": lambda text: runtime.schedules.create(text, agent, delay_s=1),
        "approve": lambda text: runtime.approvals.decide(text, approve=True, by="me"),
        "approve by": lambda text: runtime.approvals.decide("x", approve=True, by=text),
        "limit": lambda text: runtime.limits.set(f"type:{text}", max_concurrent=1),
    }
    for name, text in TEXTS.items():
        if name == "number" and door in (
            "submit priority",
            "submit session",
            "send sender",
            "limit",
        ):
            continue
        if name in ("long", "wide") and door == "cancel reason":
            continue  # as long as a page
        with pytest.raises((ContractError, TypeError, AttributeError)):
            await doors[door](text)
    row = await bed.row(run_id)
    assert row.cancel_requested is None
    await runtime.cancel(run_id)
    await bed.ended(run_id)


def _refuse(
    bed: Bed, refuses: Callable[[str, str], Exception | None], refused_runs: list[str]
) -> None:
    """Let the store of hosts that start from now on refuse the writes that `refuses` selects."""
    before = bed.open_store

    @asynccontextmanager
    async def open_store(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        async with before(owner) as store:
            store.commits = cast("CommitStore", _Refusing(store.commits, refuses, refused_runs))
            store.reads = cast("ReadStore", _Refusing(store.reads, refuses, refused_runs))
            yield store

    bed.open_store = open_store


class _Refusing:
    """A role of a store that refuses some writes, like a server with narrower rules."""

    def __init__(
        self, role: Any, refuses: Callable[[str, str], Exception | None], refused_runs: list[str]
    ) -> None:
        self._role, self._refuses, self._refused_runs = role, refuses, refused_runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def _look(self, run_id: str, what: object) -> None:
        exc = self._refuses(run_id, str(what))
        if exc is not None:
            self._refused_runs.append(run_id)
            raise exc

    async def append(self, lease: Any, entries: Any, *, expected_seq: int) -> Any:
        """See `CommitStore.append`."""
        self._look(lease.run_id, entries)
        return await self._role.append(lease, entries, expected_seq=expected_seq)

    async def commit(self, commit: Any) -> Any:
        """See `CommitStore.commit`."""
        self._look(commit.lease.run_id, (commit.entries, commit.then))
        return await self._role.commit(commit)

    async def state_at(self, agent_id: AgentId, key: str) -> Any:
        """See `ReadStore.state_at`."""
        self._look("", f"state of {agent_id}")
        return await self._role.state_at(agent_id, key)


def _too_big(run_id: str, what: str) -> Exception | None:
    del run_id
    refused = StoreRefusedError("committing a turn", "the row is too big", "54000")
    return refused if "poison" in what and "store_refused" not in what else None


POSITIONS = ("step", "state", "end", "beginning", "read")


@pytest.mark.parametrize("position", POSITIONS)
async def test_a_run_whose_writes_are_refused_is_parked_by_the_second_refusal(  # noqa: PLR0915
    bed: Bed, position: str
) -> None:
    """Started twice with a pause in between, for each kind of refused write; after a retry it completes."""
    begun, is_mended = 0, False
    refused_runs: list[str] = []

    def refuses(run_id: str, what: str) -> Exception | None:
        if position == "read" and what.startswith("state of"):
            return None if is_mended else StoreRefusedError("reading", "no", "42501")
        return _too_big(run_id, what)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        nonlocal begun
        begun += 1
        text = "fine" if is_mended else "poison"
        if position != "beginning":
            await ctx.step("before", bed.world.do, "before")
        if position == "step":
            await ctx.step("write", bed.world.do, "write", text)
        elif position == "state":
            await ctx.state.set("key", text)
        elif position == "read":
            await ctx.state.get("key")
        elif position == "beginning":
            await ctx.send(AgentId(ctx.agent_id.type, "2"), text)
        return text

    _refuse(bed, refuses, refused_runs)
    agent = await bed.serve(act)
    await bed.restart()
    if position == "beginning":
        run_id = run_id_of_mail(agent, "client:local", "m")
        await bed.runtime.send(agent, Message("m", agent, "plain mail"))
        await bed.until(lambda: begun == 2)
    else:
        run_id = await bed.submit(agent)
    parked = await bed.seen(run_id, EntryKind.RUN_PARKED)
    row = await bed.row(run_id)
    assert (row.status, row.parked) == (RunStatus.SUSPENDED, "store_refused")
    assert begun == 2
    assert len(refused_runs) == 2
    code = "42501" if position == "read" else "54000"
    assert code in str(parked.payload["detail"])
    assert f"callboard runs resolve {run_id} - --retry" in str(parked.payload["detail"])
    assert bed.world.count["before"] == (position != "beginning")

    is_mended = True
    await bed.runtime.resolve(run_id)
    assert await bed.result(run_id) == "fine"
    assert begun == 3
    refolded = await bed.runtime.store.operators.refold(run_id)
    assert refolded.status is RunStatus.COMPLETED


@pytest.mark.parametrize("code", ["08006", "40001", "53100", "55P03", "57014"])
async def test_a_temporary_refusal_parks_nothing(bed: Bed, code: str) -> None:
    """Connection errors, deadlocks, resources, locks and timeouts are not caused by the run."""
    refused_runs: list[str] = []

    def refuses(run_id: str, what: str) -> Exception | None:
        del run_id
        is_it = "poison" in what and len(refused_runs) < 3
        return StoreRefusedError("committing a turn", "not now", code) if is_it else None

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return str(await ctx.step("write", bed.world.do, "write", "poison"))

    _refuse(bed, refuses, refused_runs)
    agent = await bed.serve(act)
    await bed.restart()

    assert await bed.result(await bed.submit(agent)) == "poison"
    assert len(refused_runs) == 3


async def test_neighbours_of_a_refused_run_go_on(bed: Bed) -> None:
    """Five refused runs start ten times while their neighbours complete hundreds."""
    begun = 0

    async def bad(ctx: RunContext, inbox: list[Message]) -> None:
        nonlocal begun
        del inbox
        begun += 1
        await ctx.step("write", bed.world.do, "write", "poison")

    async def good(ctx: RunContext, inbox: list[Message]) -> Any:
        return await ctx.step("echo", bed.world.do, "echo", inbox[0].payload)

    _refuse(bed, _too_big, [])
    agents = [await bed.serve(bad) for _ in range(5)]
    neighbour = await bed.serve(good)
    await bed.restart()
    runs = [await bed.submit(agent) for agent in agents]
    for n in range(100):
        assert await bed.result(await bed.submit(neighbour, n)) == n
    for run_id in runs:
        await bed.seen(run_id, EntryKind.RUN_PARKED)

    assert begun == 10


async def test_a_refused_parking_is_retried_with_growing_pauses(bed: Bed) -> None:
    """No busy loop, and the run is not given up: it is parked as soon as the store accepts it."""
    refused_runs: list[str] = []
    times: list[float] = []

    def refuses(run_id: str, what: str) -> Exception | None:
        del run_id
        if "run.started" in what and len(refused_runs) < 4:
            times.append(asyncio.get_running_loop().time())
            return ValueError("a mistake of the driver")
        return None

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return str(await ctx.step("write", bed.world.do, "write", "x"))

    _refuse(bed, refuses, refused_runs)
    agent = await bed.serve(act)
    await bed.restart()
    run_id = await bed.submit(agent, retry_policy=FAST)
    await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert len(refused_runs) == 4
    assert times[-1] - times[0] >= 3
    await bed.runtime.resolve(run_id)
    assert await bed.result(run_id) == "x"
