"""`callboard dev`: agents are restarted when their code changes, on servers that end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from compose._assembly.runtime import build_local_runtime
from tests.harness.servers import refuse
from tests.system.processes import ROOT
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE: Final = """
from actors import agent

@agent("desk")
async def desk(ctx, inbox):
    await ctx.step("first", lambda: None)
    payload = await ctx.sleep_until_signal("go")
    return {"code": 1, "payload": payload}
"""


class Session:
    """A `callboard dev` in a folder of its own, and its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.save(CODE)
        self.process: subprocess.Popen[bytes] | None = None

    def save(self, code: str) -> None:
        """Replace the application atomically."""
        new = self.folder / "shop.tmp"
        new.write_text(code)
        new.replace(self.folder / "shop.py")

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Run a `callboard` command in the folder, with its output in the file `out`."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("CALLBOARD_")}
        with self.out.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "compose", *words],
                cwd=self.folder,
                env={**env, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=out,
            )

    def events(self) -> list[dict[str, Any]]:
        """Return the events so far."""
        text = self.out.read_text() if self.out.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def until(self, event: str, **facts: object) -> dict[str, Any]:
        """Return the first event of this kind with these facts."""
        events: list[dict[str, Any]] = []

        def has_come() -> bool:
            events[:] = [
                e for e in self.events() if e["event"] == event and facts.items() <= e.items()
            ]
            assert events or self.process is None or self.process.poll() is None, (
                self.out.read_text()
            )
            return bool(events)

        await until(has_come, f"{event} {facts} in {self.out.read_text()}", limit_s=40)
        return events[0]

    def pids(self) -> set[int]:
        """Return each living process that names the folder: servers and hosts."""
        lines = subprocess.run(
            ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        return {int(line.split()[0]) for line in lines if str(self.folder / "data") in line}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Yield a folder with an application; no process of it survives the test."""
    if sys.platform == "win32":
        refuse("the embedded servers have no wheel for this system")
    started = Session(tmp_path)
    yield started
    if started.process is not None and started.process.poll() is None:
        started.process.kill()
        started.process.wait()


@pytest.mark.costly
@pytest.mark.timeout(120)
@pytest.mark.item(172)
async def test_a_run_goes_on_in_changed_code_and_ctrl_c_leaves_nothing_behind(
    session: Session,
) -> None:
    """An error in the code is one line and stops no host; a change replaces the host, not the run."""
    session.process = session.command("dev", "shop:desk", "--json", "--data", "data")
    first = await session.until("serving", generation=1)
    async with build_local_runtime(session.folder / "data", serve=False) as client:
        run_id = await client.submit(AgentId("desk", "main"), {})
        await session.until("run", run=run_id)
        session.save(CODE + "def (")
        broken = await session.until("error")
        session.save(CODE.replace('"code": 1', '"code": 2'))
        second = await session.until("serving", generation=2)
        await client.signal(run_id, "go", "x")
        result = await client.result(run_id)
        await session.until("run", run=run_id, status="COMPLETED")
    at_work = session.pids()
    session.process.send_signal(signal.SIGINT)
    await until(lambda: session.process is None or session.process.poll() is not None, "the end")
    await until(lambda: not session.pids(), "the end of its servers and hosts")

    assert "shop.py:9: invalid syntax; the agents continue as before" in broken["text"]
    assert first["pid"] != second["pid"]
    assert result == {"code": 2, "payload": "x"}
    assert len(at_work) >= 3
    assert session.process.returncode == 0
