"""`callboard runs redrive` and `runs sweep`, and the host's own sweep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors.errors import ContractError
from compose._commands.options import span_s
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


async def submit_until_failed(runtime: Runtime, key: str, payload: str) -> RunId:
    """A run that has failed for good."""
    run_id = await runtime.submit(AgentId("flaky", key), payload, max_retries=0)
    async with asyncio.timeout(20):
        await runtime.wait(run_id)
    return run_id


async def results_of(runtime: Runtime, *run_ids: str) -> list[object]:
    """What these runs returned."""
    async with asyncio.timeout(20):
        return [await runtime.result(run_id) for run_id in run_ids]  # type: ignore[arg-type]


@pytest.mark.item(164, 488)
async def test_dead_runs_are_listed_and_redriven(cli: Cli, tmp_path: Path) -> None:
    """By name or all of them; twice is once."""
    marker = tmp_path / "repaired"
    async with cli.host("flaky") as runtime:
        runs = [await submit_until_failed(runtime, key, str(marker)) for key in ("a", "b", "c")]
        marker.touch()
        rows = (await cli.call("runs", "list", "--status", "failed", "--json")).data
        redriven_rows = (await cli.call("runs", "redrive", runs[0], "--json")).data
        again = (await cli.call("runs", "redrive", runs[0], "--json")).data
        every = await cli.call("runs", "redrive", "--all")
        all_of_them = (await cli.call("runs", "redrive", "--all", "--json")).data
        results = await results_of(runtime, *(row["redriven_as"] for row in all_of_them))
        letters = (await cli.call("dlq", "list", "--json")).data
        by_name = await cli.call("runs", "redrive", runs[1], runs[2])

    assert {run["run"] for run in rows} == set(runs)
    assert (
        redriven_rows == again == [{"run": runs[0], "redriven_as": redriven_rows[0]["redriven_as"]}]
    )
    assert every.out.count("continues as") == 3
    assert results == ["repaired"] * 3
    assert letters == []
    assert by_name.code == 0


async def test_what_cannot_be_redriven_is_refused(cli: Cli) -> None:
    """With 4 for a run that is not there, with 2 for one that has not failed, or names and --all."""
    none = await cli.call("runs", "redrive", "--all")
    neither = await cli.call("runs", "redrive")
    both = await cli.call("runs", "redrive", "x", "--all")
    unknown = await cli.call("runs", "redrive", "0" * 32)
    async with cli.host("waiter") as runtime:
        waiting = await runtime.submit(AgentId("waiter", "a"), None)
        open_ = await cli.call("runs", "redrive", waiting)
        await runtime.signal(waiting, "go", "done")
        await results_of(runtime, waiting)
        await asyncio.sleep(0.01)
        await cli.call("runs", "sweep", "--older-than", "0s")
        swept_output = await cli.call("runs", "redrive", waiting)

    assert none.out == "no failed runs\n"
    codes = [output.code for output in (neither, both, unknown, open_, swept_output)]
    assert codes == [2, 2, 4, 2, 2]
    assert "--all" in neither.err
    assert waiting in open_.err
    assert "swept" in swept_output.err


@pytest.mark.item(487)
async def test_old_runs_are_swept_by_hand(cli: Cli) -> None:
    """Those that ended longer ago; the others, and open ones, stay as they are."""
    async with cli.host("waiter") as runtime:
        first, second = [await runtime.submit(AgentId("waiter", key), None) for key in "ab"]
        await runtime.signal(first, "go", "done")
        await results_of(runtime, first)
        await asyncio.sleep(0.01)
        young = (await cli.call("runs", "sweep", "--json")).data
        old = await cli.call("runs", "sweep", "--older-than", "0s")
        log = await cli.call("runs", "log", first)
        show_output = await cli.call("runs", "show", first, "--json")
        again = await cli.call("runs", "log", first, "--follow")
        people = await cli.call("runs", "show", first)
        await runtime.signal(second, "go", "too")
        results = await results_of(runtime, second)

    assert young == {"swept": 0, "older_than_s": 30 * 86_400}
    assert old.out == "swept 1 run(s)\n"
    assert (log.code, again.code) == (0, 0)
    assert (show_output.data["status"], show_output.data["result"]) == ("COMPLETED", None)
    assert show_output.data["swept"] is True
    assert "tombstone" in people.out
    assert results == ["too"]


@pytest.mark.item(487)
async def test_a_host_sweeps_runs_older_than_its_setting(cli: Cli) -> None:
    """And keeps all when there is none."""
    async with cli.host("waiter") as runtime:
        run_id = await runtime.submit(AgentId("waiter", "a"), None)
        await runtime.signal(run_id, "go", "done")
        await results_of(runtime, run_id)
    async with cli.host("waiter", retain_days=1) as runtime:
        assert await results_of(runtime, run_id) == ["done"]
    async with cli.host("waiter", retain_days=1e-9) as runtime, asyncio.timeout(20):
        while not (row := await runtime.store.reads.run(run_id)) or not row.swept:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert row.status == "COMPLETED"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_spans_are_numbers_with_a_unit(text: str, seconds: float) -> None:
    """In seconds, minutes, hours or days."""
    assert span_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1 d x"])
def test_what_is_no_span_is_refused(text: str) -> None:
    """With what it has to look like."""
    with pytest.raises(ContractError, match="30d"):
        span_s(text)


@pytest.mark.parametrize("words", [["sweep", "--older-than", "soon"], ["sweep", "x"]])
def test_sweeping_says_what_is_wrong(cli: Cli, words: Sequence[str]) -> None:
    """With 2."""
    assert cli("runs", *words).code == 2
