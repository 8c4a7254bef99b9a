"""Time from the start of the process of `callboard host` until it serves, measured several times.

On servers that are up, and with a folder whose servers it starts first.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.benchmarks.bench import report

if TYPE_CHECKING:
    from tests.benchmarks.outside import Servers

TIMES: Final = 10
LIMITS_MS: Final = {"servers": 500, "folder": 700}
SERVES: Final = b"host.serving"
"""Log event of a host that can execute messages."""
AGENTS: Final = "tests.benchmarks.cold_agents:AGENTS"
ROOT: Final = Path(__file__).resolve().parents[2]


async def started(*options: str) -> tuple[float, float]:
    """Return the milliseconds until a host served, and the CPU milliseconds of its process by then."""
    argv = [sys.executable, "-m", "compose", "host", AGENTS, *options]
    began = time.perf_counter()
    host = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=DEVNULL, stderr=PIPE)
    assert host.stderr is not None
    lines = []
    while SERVES not in (line := await host.stderr.readline()):
        lines.append(line)
        assert line, b"".join(lines).decode()
    took = time.perf_counter() - began
    cpu_s = _cpu_s(host.pid)
    host.terminate()
    await host.communicate()
    return took * 1000, cpu_s * 1000


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def measured(setup: str, times: int, *options: str) -> None:
    """Print a line on so many starts; one before them makes what the first start makes."""
    await started(*options)
    figures = [await started(*options) for _ in range(times)]
    took, cpu_ms = zip(*figures, strict=True)
    report(
        benchmark="cold_host",
        on=setup,
        times=times,
        median_ms=round(statistics.median(took)),
        least_ms=round(min(took)),
        cpu_ms=round(statistics.median(cpu_ms)),
        limit_ms=LIMITS_MS[setup],
    )


async def run(servers: Servers, *, scale: float = 1.0) -> None:
    """Print a line for given servers and one for a folder."""
    times, name = max(1, int(TIMES * scale)), f"cold_{uuid.uuid4().hex[:12]}"
    options = ("--postgres-url", servers.postgres_url, "--nats-url", servers.nats_url)
    await measured("servers", times, *options, "--namespace", name, "--schema", name)
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        await measured("folder", times, "--data", str(Path(folder) / "data"))
