"""A pipeline: a graph reads 50 files at the same time, its host is killed half-way, each file is done once."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from actors import RunId, Runtime, idempotency_key
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    FlowRuns,
    Flows,
    RunState,
    StepPlan,
    WorkflowSpec,
    branch_of,
    verify_ledger_chain,
)
from compose import Settings, build_postgres_runtime
from compose.demo.desk import append_line, lines_of
from compose.settings import settings_of_client

FILES: Final = 50
ANSWERED: Final = 25
"""So many calls are answered before the kill."""
DONE: Final = 30
"""So many are done before it: five answers get lost."""


def split(run: RunState, ctx: Any) -> StepPlan:
    """Begin a branch for each file."""
    return StepPlan("split", parallel=dict.fromkeys(run.vars["files"], "read"), next_node="sum")


def read(run: RunState, ctx: Any) -> StepPlan:
    """Have the words of this branch's file counted."""
    [name] = branch_of(run.vars)
    effect = Effect(EffectType.TOOL_CALLS, {"file": name}, f"words.{name}")
    return StepPlan("read", effect, next_node="sum")


def total(run: RunState, ctx: Any) -> StepPlan:
    """Add up what all branches found."""
    return StepPlan("sum", complete_output=sum(run.vars["words"].values()))


async def count(run: RunState, effect: Effect) -> EffectOutcome:
    """Ask the service to count the words of a file, with the key by which it knows this effect again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", run.vars["port"])
    asked = [idempotency_key(), effect.payload["file"], os.getpid()]
    writer.write(f"{json.dumps(asked)}\n".encode())
    words = json.loads(await reader.readline())
    writer.close()
    return EffectOutcome.completed(words)


SPEC: Final = WorkflowSpec("count", "split", {"split": split, "read": read, "sum": total})
FLOWS: Final = Flows("pipeline", [SPEC], effect_handlers={EffectType.TOOL_CALLS: count})
"""What `callboard host pipeline:FLOWS` serves."""


class Line(NamedTuple):
    """A line of the service's ledger: an effect that was done, and for which process."""

    key: str
    file: str
    host: int
    words: int


class Service:
    """Counts words, once for each key. It stands outside, and knows nothing of runs.

    Of the first calls for all files some get no answer: they wait until their caller is dead.

    Attributes:
        calls: The key and the host of each call, in order.
        half_way: Set when each file was asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._ledger = folder, str(folder / "effects.jsonl")
        self.calls: list[tuple[str, int]] = []
        self.half_way = asyncio.Event()

    @property
    def done(self) -> list[Line]:
        """The ledger's lines."""
        return [Line(*json.loads(line)) for line in lines_of(self._ledger)]

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one call."""
        key, name, host = json.loads(await reader.readline())
        self.calls.append((key, host))
        number = len(self.calls)
        if number == FILES:
            self.half_way.set()
        if number <= DONE or number > FILES:
            words = self._words(key, name, host)
            if number <= ANSWERED or number > FILES:
                writer.write(f"{words}\n".encode())
        await reader.read()  # returns when the caller closes, or is dead
        writer.close()

    def _words(self, key: str, name: str, host: int) -> int:
        known = [line.words for line in self.done if line.key == key]
        if known:
            return known[0]
        words = len((self._folder / name).read_text(encoding="utf-8").split())
        append_line(self._ledger, json.dumps(Line(key, name, host, words)))
        return words


@asynccontextmanager
async def hosts(settings: Settings) -> AsyncIterator[dict[int, Process]]:
    """Yield two host processes by their ids; end what is left of them."""
    env = os.environ | {
        "CALLBOARD_POSTGRES_URL": settings.postgres_url or "",
        "CALLBOARD_LEASE_S": "2",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    words = (sys.executable, "-m", "compose", "host", "pipeline:FLOWS")
    here, log = Path(__file__).parent, asyncio.subprocess.DEVNULL
    begun = [
        await asyncio.create_subprocess_exec(*words, cwd=here, env=env, stderr=log)
        for _ in range(2)
    ]
    try:
        yield {one.pid: one for one in begun}
    finally:
        for one in begun:
            if one.returncode is None:
                one.terminate()
            await one.wait()


async def half_way(client: Runtime, run_id: RunId, service: Service) -> None:
    """Return when each file was asked for, and what was answered is in the run's log."""
    await service.half_way.wait()
    results = 0
    async for entry in client.tail(run_id):
        results += entry.kind == "effect.result"
        if results == ANSWERED:
            return


async def play(client: Runtime, settings: Settings, folder: Path) -> bool:
    """Run it, with a death in the middle. Return whether all holds that is to be proved."""
    names = [f"file-{n:02}" for n in range(FILES)]
    for n, name in enumerate(names):
        (folder / name).write_text("word " * (n + 1), encoding="utf-8")
    service = Service(folder)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    async with server, hosts(settings) as processes:
        port = server.sockets[0].getsockname()[1]
        runs = FlowRuns(client, FLOWS)
        run_id = await runs.start("count", vars={"files": names, "port": port})
        await half_way(client, run_id, service)
        victim = service.done[0].host
        processes[victim].kill()
        await processes[victim].wait()
        print(f"{FILES} files, {ANSWERED} results are in the log: SIGKILL for host {victim}")
        print(f"the other one goes on. The run is completed: {await client.result(run_id)} words")
        return proved(service, victim, await runs.ledger(run_id))


def proved(service: Service, victim: int, ledger: list[dict[str, Any]]) -> bool:
    """Print the proof that each file was done once, by the ledgers of the service and of the run."""
    done, by = service.done, Counter(line.host for line in service.done)
    before, behind = service.calls[:FILES], service.calls[FILES:]
    lost = {line.key for line in done[ANSWERED:DONE]}
    results = {
        one["idempotency_key"]: one["result"]
        for one in ledger
        if one["status"] == "completed" and (one["effect"] or {}).get("type") == "tool_calls"
    }
    chain = verify_ledger_chain(ledger)
    cut = verify_ledger_chain(ledger[:-1], head_hash=chain["head_hash"])
    files, keys = {line.file for line in done}, {line.key for line in done}
    again = {key for key, _ in behind}
    proofs = {
        f"the service did {len(done)} effects, for {len(files)} files": len(done)
        == len(files)
        == FILES,
        f"they have {len(keys)} idempotency keys": len(keys) == FILES,
        f"{by[victim]} are of the dead host, {FILES - by[victim]} of the other one": by[victim]
        == DONE,
        f"{len(again)} calls without a result came again, with the same keys": (
            len(again) == len(behind) == FILES - ANSWERED and again <= {key for key, _ in before}
        ),
        f"{len(lost & again)} of them were done already, and were not done again": lost <= again,
        f"the run's ledger has {len(results)} results, those of the service": (
            results == {line.key: line.words for line in done}
        ),
        f"its {chain['count']} records are one chain": chain["ok"],
        "without its last record it is refused": not cut["ok"],
    }
    for text, holds in proofs.items():
        print(f"  {'proved' if holds else 'WRONG '}  {text}")
    return all(proofs.values())


async def main(data: Path) -> bool:
    """Open the server of the folder, and play."""
    files = data / "files"
    files.mkdir(parents=True, exist_ok=True)
    (files / "effects.jsonl").unlink(missing_ok=True)
    async with settings_of_client(Settings(data_dir=data / "server")) as settings:
        url = settings.postgres_url or ""
        async with build_postgres_runtime(url, settings=settings, serve=False) as client:
            return await play(client, settings, files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of files and server; without one they go")
    chosen = parser.parse_args().data
    with tempfile.TemporaryDirectory() as drawn:
        sys.exit(not asyncio.run(main(Path(chosen or drawn).resolve())))
