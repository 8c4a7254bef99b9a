"""`CALLBOARD_FAULT` in a real process: dead or frozen at the named round trip."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from actors._kernel import faults
from actors.errors import ContractError
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import asyncio, sys
from tests.conformance.bed import result
from tests.integration.persistence.hosts import host

async def main(url, schema):
    async with host(url, schema) as bed:
        run = await bed.begin()
        print("ready", flush=True)
        for n in range(5):
            await run.append(result(str(n)))
            print(n, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def program(postgres_dsn: str, schema: str) -> Iterator[object]:
    """Starts the program with a fault armed."""
    started: list[subprocess.Popen[str]] = []

    def start(fault: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, postgres_dsn, schema],
            env={**os.environ, faults.VARIABLE: fault},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(("moment", "written"), [("before", 2), ("after", 3)])
async def test_a_process_is_killed_at_its_fault(  # noqa: PLR0917 - fixtures
    program: object, postgres_dsn: str, schema: str, moment: str, written: int
) -> None:
    """Before the third round trip two entries are there, after it three; it never heard of them."""
    process = program(f"append:3:{moment}")  # type: ignore[operator]

    out, _ = process.communicate(timeout=20)

    assert process.returncode == -signal.SIGKILL
    assert out.split() == ["ready", "0", "1"]
    rows = await sql(postgres_dsn, schema, "select from event_log where kind = 'effect.result'")
    assert len(rows) == written


async def test_a_process_freezes_at_its_fault_and_can_go_on(
    program: object, postgres_dsn: str, schema: str
) -> None:
    """SIGSTOP, as a paused machine would; SIGCONT lets it finish."""
    process = program("append:2:freeze")  # type: ignore[operator]

    _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=20)

    assert out.split() == ["ready", "0", "1", "2", "3", "4"]
    assert len(await sql(postgres_dsn, schema, "select from event_log")) == 6


def test_an_unset_variable_arms_nothing() -> None:
    """Production pays a block of nothing."""
    assert faults.parse("") == {}
    assert not isinstance(faults.armed("nosuch"), faults.Fault)


@pytest.mark.parametrize("text", ["commit", "commit:x:after", "commit:0:after", "commit:1:later"])
def test_a_fault_that_cannot_be_read_is_an_error(text: str) -> None:
    """A mistyped fault would look like a passed test."""
    with pytest.raises(ContractError, match="point:n:moment"):
        faults.parse(text)


def test_several_points_can_be_armed() -> None:
    """Separated by commas."""
    assert set(faults.parse("commit:1:after,submit:2:before")) == {"commit", "submit"}
