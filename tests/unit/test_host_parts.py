"""Parts of the host and of `callboard dev` that need no server."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors import Runtime
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.shards import Serves
from actors._runtime.loop.clock import SystemClock
from actors._runtime.telemetry.counters import MAX_NAMES, ModelCounters
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime, SessionAgent
from actors.testing import FunctionModel
from compose._host.http import AddressError, parse_address
from compose._host.loader import ServeError, serve_all
from compose._host.metrics import MAX_TYPES, HostProbes, bounded
from compose._host.process import SIGNALS, Stop
from compose._tools.reload import Rate, syntax_problem
from tests.system.agents import Ten
from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_signal_that_comes_before_the_servers_are_looked_for_is_heard() -> None:
    """SIGTERM while agents' modules are imported: the host does not go on to wait for its servers."""
    stop, loop = Stop(), asyncio.get_running_loop()
    stop.listen()
    try:
        signal.raise_signal(signal.SIGTERM)
        await stop.requested.wait()
        async with asyncio.timeout(20):
            opened = await stop.unless_stopped(loop.create_future())
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    assert opened is None


async def test_a_host_with_nothing_to_serve_says_so() -> None:
    """No types are as wrong as no agents: the host would only wait."""
    empty: list[object] = [{}, [], ()]
    async with Runtime() as runtime:
        for nothing in empty:
            with pytest.raises(ServeError, match="cannot serve 'shop:AGENTS': it is empty"):
                await serve_all(runtime, {"shop:AGENTS": nothing})


@pytest.mark.parametrize(
    "served", [dict.fromkeys("abc", Ten), [Ten(AgentId("ten", k)) for k in "abc"]]
)
async def test_all_agents_of_a_name_are_claimed_for_at_once(
    served: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with fifty types asks its store as often as one with a single type."""
    async with Runtime() as runtime:
        shards = runtime.store.shards
        claim, claimed = shards.claim, list[Serves]()

        async def counted(*, owner: HostIncarnation, serves: Serves, limit: int) -> Any:
            claimed.append(serves)
            return await claim(owner=owner, serves=serves, limit=limit)

        monkeypatch.setattr(shards, "claim", counted)
        await serve_all(runtime, {"shop:AGENTS": served})
        monkeypatch.undo()

    [serves] = claimed
    assert len(serves.types) + len(serves.agents) == 3


def test_labels_are_bounded() -> None:
    """A hundred types have their own line; all others share one, and nothing is lost."""
    values = {f"type-{n:04}": 1.0 for n in range(MAX_TYPES + 20)}
    bounded_values = bounded(values)

    assert len(bounded_values) == MAX_TYPES + 1
    assert bounded_values["other"] == 20
    assert sum(bounded_values.values()) == len(values)


def test_models_and_strategies_are_bounded() -> None:
    """A hundred have their own line; all others share one, and names of one model are one."""
    calls, extra = ModelCounters(), 20
    for n in range(MAX_NAMES + extra):
        steps: list[JsonValue] = [{"strategy": f"s-{n}"}]
        payload: dict[str, JsonValue] = {"status": "ok", "receipt": {"tokens": 1, "steps": steps}}
        calls.count_call(f"openai:m-{n}", payload, 1.0)
    calls.count_call("openai-chat:m-0", {"status": "ok"}, 1.0)

    assert len(calls.models) == len(calls.compactions) == MAX_NAMES + 1
    assert calls.models["", "other"].duration_s.count == calls.compactions["other"] == extra
    assert calls.models["openai", "m-0"].duration_s.count == 2


def test_made_up_types_push_no_real_one_out() -> None:
    """They share the last label, however early in the alphabet they are."""
    made_up = [f"a{n:04}" for n in range(MAX_TYPES + 20)]
    bounded_values = bounded(
        dict.fromkeys(["orders", "shipping", *made_up], 1.0), ["shipping", *made_up]
    )

    assert (bounded_values["orders"], bounded_values["shipping"]) == (1, 1)
    assert bounded_values["other"] == 22
    assert sum(bounded_values.values()) == len(made_up) + 2


async def test_a_host_is_told_by_its_phase_and_metrics_need_no_database() -> None:
    """Before it serves there are its process and its phase; afterwards its own counters."""
    probes = HostProbes(SystemClock())
    starting = await probes.reasons()
    async with Runtime() as runtime:
        probes.serving(runtime)
        ready = await probes.reasons()
        text, media_type = await probes.metrics()
        probes.draining()
        draining = await probes.reasons()
    names = {family.name for family in text_string_to_metric_families(text.decode())}

    assert [reason["problem"] for reason in (*starting, *draining)] == [
        "is starting",
        "is draining",
    ]
    assert ready == []
    required_names = {"callboard_turns", "callboard_host_lease_good", "callboard_window_tokens"}
    assert required_names <= names
    assert media_type.startswith("text/plain")
    text_of_page = (ROOT / "docs/operations-commands.md").read_text(encoding="utf-8")
    ours = [name for name in names if name.startswith(("callboard_", "gen_ai_"))]
    assert [name for name in ours if name not in text_of_page] == []


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), (":9", ("", 9))],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    """The host may be left out, which means all."""
    assert parse_address(text) == address


class Slow(FunctionModel):
    """A model whose client takes a long time to load, or cannot be loaded."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(lambda *_: "hello")
        self.error, self.begun, self.loaded = error, asyncio.Event(), asyncio.Event()

    async def prepare(self) -> None:
        """Wait until the test says that it is loaded."""
        self.begun.set()
        if self.error is not None:
            raise self.error
        await self.loaded.wait()


async def test_a_host_prepares_models_beside_its_start() -> None:
    """Start and stop do not wait for it: neither of an agent, of a session's modes, nor of a later agent."""
    models = [Slow() for _ in range(4)]
    modes = {"normal": ReActAgent("normal", model=models[1])}
    session = SessionAgent(AgentId("talk", "any"), {"normal": ReActAgent("n", model=models[2])})
    async with asyncio.timeout(20):
        runtime = Runtime()
        await runtime.register(ReActAgent("early", model=models[0]))
        await serve_all(runtime, {"shop:talk": session})
        async with AgentRuntime(runtime=runtime, app="app", agents=modes):
            assert not any(model.begun.is_set() for model in models)
            async with runtime:
                await runtime.register(ReActAgent("late", model=models[3]))
                for model in (models[0], models[2], models[1], models[3]):
                    await model.begun.wait()
                    model.loaded.set()


async def test_a_model_that_cannot_be_prepared_stops_no_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names the reason. The others are prepared, and the agent is served."""
    broken, fine = Slow(ModuleNotFoundError("No module named 'anthropic'")), Slow()
    async with asyncio.timeout(20), Runtime() as runtime:
        agents = [ReActAgent(f"a{n}", model=model) for n, model in enumerate([broken, fine])]
        async with AgentRuntime(
            runtime=runtime, agents=dict(zip("ab", agents, strict=True))
        ) as app:
            await fine.begun.wait()
            fine.loaded.set()
            run = await app.start("hello", mode="b")
            phase = await run.wait()

    assert phase == "completed"
    [record] = [r for r in caplog.records if r.getMessage() == "a model could not be prepared"]
    assert vars(record)["reason"] == "No module named 'anthropic'"


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:x", "host:70000", "host:-1", "host:٣"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    """The message says how to write one."""
    with pytest.raises(AddressError, match=r"127\.0\.0\.1:8080"):
        parse_address(text)


def test_code_that_cannot_be_compiled_is_told_by_file_and_line(tmp_path: Path) -> None:
    """Of several files the first one that is wrong; one that has gone is no problem."""
    good, bad, null = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "null.py"
    good.write_text("x = 1\n")
    bad.write_text("x = 1\n\ndef (\n")
    null.write_bytes(b"x = '\x00'\n")

    assert syntax_problem([good, tmp_path / "gone.py"]) is None
    assert str(syntax_problem([good, bad])).startswith("bad.py:3: ")
    assert "null.py" in str(syntax_problem([null]))


def test_the_rate_counts_what_ended_since_the_last_reading() -> None:
    """What had ended before does not count; after ten seconds of silence it is nothing again."""
    row = RunRow(RunId("r"), AgentId("desk", "a"), RunStatus.COMPLETED)
    rows = [replace(row, run_id=RunId(f"r{n}")) for n in range(30)]
    rate = Rate()

    assert rate.add(rows[:10], 0.0) == 0
    assert rate.add(rows, 2.0) == 10
    assert rate.add(rows, 5.0) == 4
    assert rate.add(rows, 20.0) == 0
