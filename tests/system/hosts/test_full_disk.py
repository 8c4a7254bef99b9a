"""A full disk of PostgreSQL: hosts keep their results in memory meanwhile, and repeat nothing."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

from actors._kernel.runtime.ids import AgentId
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.harness.slow import IS_SLOW
from tests.integration.persistence.hosts import sql
from tests.system.agents import STEP_COUNT, executed
from tests.system.fullness import Fullness
from tests.system.processes import Hosts
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors._runtime import Runtime
    from tests.harness.servers import OwnPostgres
    from tests.system.processes import HostProcess

TEN = AgentId("ten", "a")
ALL = [f"value-{n}" for n in range(STEP_COUNT)]
WAITS, GOES_ON = "PostgreSQL refuses to write", "PostgreSQL writes again"


def _ready(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=20) as answer:
            return answer.status, ""
    except HTTPError as exc:
        body: dict[str, Any] = json.load(exc)
        return exc.code, str(body["reasons"])


def _count(host: HostProcess, event: str) -> int:
    return sum(line["event"].startswith(event) for line in host.events())


@pytest.mark.costly
@pytest.mark.parametrize("number", [2, 3], ids=["at most once", "idempotent"])
async def test_an_effect_during_a_full_disk_happens_once(  # noqa: PLR0917 - fixtures
    hosts: Hosts, client: Runtime, postgres_dsn: str, tmp_path: Path, number: int
) -> None:
    """During a long full disk its result stays in memory: no reload, no repeat, no doubt."""
    ledger = tmp_path / "ledger"
    host = await hosts.serving(lease_s=5, outage_s=1, http="127.0.0.1:0")
    url = str((await host.until("host.http"))["url"])
    full = await Fullness.of(postgres_dsn, hosts.schema, table="event_log")
    job = {"ledger": str(ledger), "pace_s": 0.5, "slow": number}
    run_id = await client.submit(TEN, job)
    await until(lambda: len(executed(ledger)) == number + 1, "the effect is under way")
    await full.begin()
    await full.refused(8)  # with pauses of up to a second: longer than `outage_s`

    assert len(executed(ledger)) == number + 1
    status, why = _ready(url)
    assert status == 503
    assert "refuses to write: disk full" in why
    await full.end()
    assert await client.result(run_id) == ALL
    assert [n for n, _ in executed(ledger)] == list(range(STEP_COUNT))
    assert _ready(url)[0] == 200
    assert _count(host, "a run could not be written") == 0
    assert (_count(host, WAITS), _count(host, GOES_ON)) == (1, 1)


async def test_runs_started_on_a_full_disk_execute_nothing_before_space_is_free(
    hosts: Hosts, client: Runtime, postgres_dsn: str, tmp_path: Path
) -> None:
    """Each is started once, and all complete."""
    ledger = tmp_path / "ledger"
    host = await hosts.serving(lease_s=5, outage_s=1)
    full = await Fullness.of(postgres_dsn, hosts.schema, table="event_log")
    await full.begin()
    job = {"ledger": str(ledger)}
    runs = [await client.submit(AgentId("ten", str(n)), job) for n in range(20)]
    await full.refused(6)

    # An idempotent step may be executed once before its run's first entry is durable.
    assert len(executed(ledger)) <= len(runs)
    await full.end()
    for run_id in runs:
        assert await client.result(run_id) == ALL
    assert len(executed(ledger)) == len(runs) * STEP_COUNT
    assert _count(host, "a run could not be written") == 0


@contextmanager
def closing(end: Callable[[], None]) -> Iterator[None]:
    """End what a test has started, also after a failure."""
    try:
        yield
    finally:
        end()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a file system of two megabytes; skip if this process may not mount one."""
    folder.mkdir()
    mounting = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounting.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounting.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["/bin/umount", "-l", str(folder)], check=True)


def _folder_of_the_owner(folder: Path, data: Path) -> Path:
    folder.mkdir()
    os.chown(folder, data.stat().st_uid, data.stat().st_gid)
    return folder


@pytest.mark.skipif(not IS_SLOW, reason="mounts a file system: CALLBOARD_TEST_SLOW=1")
async def test_a_full_file_system_repeats_no_effect(
    own_postgres: OwnPostgres, tmp_path: Path
) -> None:
    """The log's own file system fills up in the middle of a run; with free space the run continues."""
    server, ledger = own_postgres(durable=True), tmp_path / "ledger"
    hosts = Hosts(server.url, "full", tmp_path)
    with small_disk(tmp_path / "small") as small, closing(hosts.end):
        host = await hosts.serving(lease_s=5, outage_s=1)
        data = str((await sql(server.url, "full", "show data_directory"))[0][0])
        folder = _folder_of_the_owner(small / "log", Path(data))
        await sql(server.url, "full", f"create tablespace small location '{folder}'")
        await sql(server.url, "full", "alter table event_log set tablespace small")
        settings = Settings(postgres_url=server.url, db_schema="full")
        async with build_postgres_runtime(server.url, settings=settings, serve=False) as client:
            job = {"ledger": str(ledger), "pace_s": 0.5, "slow": 2}
            run_id = await client.submit(TEN, job)
            await until(lambda: len(executed(ledger)) == 3, "the effect is under way")
            filler = small / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            # The present pages of the table take a little more; other runs fill them.
            others = [
                await client.submit(AgentId("ten", str(n)), {"ledger": str(tmp_path / "others")})
                for n in range(100)
            ]
            log_line = await host.until(WAITS)
            filler.unlink()
            assert "53100" in str(log_line["problem"])
            assert await client.result(run_id) == ALL
            for other in others:
                assert await client.result(other) == ALL
    assert [n for n, _ in executed(ledger)] == list(range(STEP_COUNT))
    assert len(executed(tmp_path / "others")) == 100 * STEP_COUNT
