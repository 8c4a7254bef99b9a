"""The kernel's contracts, and that the runtime shows and satisfies them."""

from __future__ import annotations

import ast
import asyncio
import importlib
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from actors import AgentId, Message, RunContext, Runtime
from actors._kernel.agent.agent import Agent, AgentRunContext
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.runtime.waits import WakeSet, Wakeup
from actors._runtime.loop.clock import SystemClock
from actors._runtime.parts import InMemoryEventLog, InMemoryFollowGraph, MemoryStore, PushAllFanout

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import HostIncarnation

KERNEL = Path(importlib.import_module("actors._kernel").__path__[0])
DESK = AgentId("desk", "1")


class Keeper:
    """An agent that keeps its context."""

    id = DESK
    ctx: Any = None

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Keep it."""
        self.ctx = ctx
        return len(inbox)


@pytest.mark.item(8)
def test_a_runtime_shows_its_parts_and_they_cannot_be_replaced() -> None:
    """Seven of the sources' eight parts are read-only properties; the supervisor comes with spawn."""
    runtime = Runtime()
    for name in (
        "event_log",
        "journal",
        "inbox",
        "scheduler",
        "signal_bus",
        "follow_graph",
        "fanout",
    ):
        assert getattr(runtime, name) is not None
        with pytest.raises(AttributeError):
            setattr(runtime, name, None)


@pytest.mark.item(16)
def test_any_subset_of_parts_is_taken_by_name_only() -> None:
    """Each part is used if given; all are keyword-only."""
    log = InMemoryEventLog(clock=SystemClock())
    graph, fanout = InMemoryFollowGraph(), PushAllFanout()
    runtime = Runtime(event_log=log, follow_graph=graph, fanout=fanout)

    assert (runtime.event_log, runtime.follow_graph, runtime.fanout) == (log, graph, fanout)
    with pytest.raises(TypeError):
        Runtime(log)  # type: ignore[call-arg]


@pytest.mark.item(17)
async def test_a_delivery_to_the_runtimes_inbox_starts_a_run_once() -> None:
    """The inbox has the hook from construction; `notify=False` and known ids start nothing."""
    keeper = Keeper()
    async with Runtime() as runtime:
        await runtime.register(keeper)
        quiet = await runtime.inbox.deliver(DESK, Message.of(DESK, 1, id="a"), notify=False)
        again = await runtime.inbox.deliver(DESK, Message.of(DESK, 1, id="a"))
        loud = await runtime.inbox.deliver(DESK, Message.of(DESK, 2, id="b"))
        runs = await runtime.store.lists.runs()
        async with asyncio.timeout(20):
            while not runs:  # the hook's delivery is read by a task of the runtime
                await asyncio.sleep(0)
                runs = await runtime.store.lists.runs()
        await runtime.wait(runs[0].run_id)

    assert (quiet, again, loud) == (True, False, True)
    assert len(runs) == 1


@pytest.mark.item(67)
async def test_the_context_is_a_run_context_of_the_kernel() -> None:
    """`run_id`, `tenant_id` and `check()` are there; an agent is recognised by shape."""
    keeper = Keeper()
    async with Runtime() as runtime:
        await runtime.register(keeper)
        run_id = await runtime.submit(DESK, 1)
        await runtime.result(run_id)

    assert isinstance(keeper, Agent)
    assert isinstance(keeper.ctx, AgentRunContext)
    assert (keeper.ctx.run_id, keeper.ctx.tenant_id) == (run_id, "default")
    keeper.ctx.check()


@pytest.mark.item(115)
async def test_a_reader_that_comes_back_goes_on_behind_what_it_saw() -> None:
    """What a server-sent-events endpoint does: stream, lose the client, resume with the last id."""
    async with Runtime() as runtime:
        await runtime.register(Keeper())
        run_id = await runtime.submit(DESK, 1)
        await runtime.result(run_id)
        first = []
        async for entry in runtime.tail(run_id):
            first.append(entry.seq)
            break
        rest = [entry.seq async for entry in runtime.tail(run_id, from_seq=first[-1] + 1)]
        whole = [entry.seq async for entry in runtime.entries(run_id)]

    assert first + rest == whole


@pytest.mark.item(53)
async def test_an_in_memory_heartbeat_changes_nothing_and_never_raises() -> None:
    """Whatever it is asked about: leases that do not expire need none."""
    store = MemoryStore(clock=SystemClock())
    owner: HostIncarnation = "h"  # type: ignore[assignment]
    unknown = ShardLease("nowhere", owner, 1, datetime.now(UTC))  # type: ignore[arg-type]
    before = await store.lists.runs()
    report = await store.shards.heartbeat(owner, [unknown])

    assert report.lost == (unknown,)
    assert await store.lists.runs() == before


@pytest.mark.item(219, 220, 221, 222, 223, 224, 225)
def test_a_wakeup_says_what_happened_and_nothing_else() -> None:
    """Four kinds; instant, signal, payload, source, child and reference are typed."""
    for kind in ("message", "timer", "signal", "child_done"):
        assert Wakeup.model_validate({"kind": kind}).kind == kind
    whole = Wakeup(
        kind="child_done",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        signal="go",
        payload={"n": 1},
        source_run="r1",
        child_run="r2",
        result_ref="artifact:1",
    )

    assert Wakeup.model_validate_json(whole.model_dump_json()) == whole
    for wrong in (
        {"kind": "else"},
        {"kind": "timer", "at": "2026-01-01T00:00:00"},
        {"kind": "timer", "x": 1},
    ):
        with pytest.raises(ValidationError):
            Wakeup.model_validate(wrong)


@pytest.mark.item(158)
def test_a_wake_set_survives_being_stored() -> None:
    """What a suspended run waits for comes back as it was."""
    wake = WakeSet(datetime(2026, 1, 1, tzinfo=UTC), ("a", "b"), message=True, runs=("r",))

    assert WakeSet.from_json(wake.to_json()) == wake
    assert WakeSet.from_json({}) == WakeSet()


@pytest.mark.item(249)
@pytest.mark.parametrize(
    "name",
    [
        *(f"runtime.{name}" for name in ("ids", "log_entry", "effects", "scheduler")),
        *(f"runtime.{name}" for name in ("sources", "waits", "communication", "commit")),
        *(f"stores.{name}" for name in ("topics", "run_store", "transport")),
    ],
)
def test_every_contract_has_a_module_of_its_own(name: str) -> None:
    """It can be imported, and says in its first lines what it is for."""
    module = importlib.import_module(f"actors._kernel.{name}")

    assert module.__doc__


@pytest.mark.item(18, 149, 155)
def test_the_kernel_needs_no_driver_no_loop_and_no_network() -> None:
    """It imports with asyncio, sockets and every driver made unimportable."""
    blocked = [
        "asyncio",
        "socket",
        "nats",
        "asyncpg",
        "redis",
        "msgpack",
        "sqlite3",
        "opentelemetry",
    ]
    names = [
        ".".join(("actors._kernel", *file.relative_to(KERNEL).with_suffix("").parts))
        for file in sorted(KERNEL.rglob("*.py"))
        if file.name != "__init__.py"
    ]
    imports = {
        node.names[0].name.split(".")[0] if isinstance(node, ast.Import) else str(node.module)
        for file in KERNEL.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    code = f"import {', '.join(names)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert not imports & set(blocked)


def test_a_copy_of_a_message_has_every_field_of_it() -> None:
    """Also one that is added some day: each differs here from what it is by default."""
    desk, other = AgentId("desk", "1"), AgentId("desk", "2")
    message = Message(
        "m1",
        desk,
        {"a": 1},
        "ext:x",
        7,
        datetime(2020, 1, 1, tzinfo=UTC),
        RunId("r"),
        "c",
        "d",
        {"k": "v"},
    )
    plain = Message("m2", desk, None)
    names = [field.name for field in fields(Message)]
    assert [n for n in names if getattr(message, n) == getattr(plain, n)] == ["target"]
    assert message.copied() == message
    assert message.copied_to(other) == replace(message, target=other)
