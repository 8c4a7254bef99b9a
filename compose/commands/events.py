"""`callboard runs events`: what happens in a run, as it happens."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from actors.kernel.runtime.front import Caller, RunEvent
from compose.commands.numbers import Seq
from compose.commands.output import console, print_json, say, short
from compose.commands.runs import known_run
from compose.commands.target import HERE, Target
from compose.embedded import url_if_running
from compose.runtime import build_postgres_runtime, build_runtime
from compose.settings import NATS_LOGIN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from actors.kernel.runtime.commit import RunRow
    from actors.runtime import Runtime


async def events(
    run: str,
    /,
    *,
    follow: Annotated[bool, Parameter(alias="-f", negative="")] = False,
    from_seq: Seq = 0,
    target: Target = HERE,
) -> None:
    """Print what happens in a run: entries, pieces of models' answers, and the end.

    Without `--follow` it ends where the log ends now. Who was broken off goes on with `--from-seq`,
    one behind the last entry that was seen. With `--follow` pieces of an answer are shown as they
    come, if CALLBOARD_NATS_URL (or the folder) names the hosts' NATS; they are never stored, and when
    the attempt grows, those of the attempt before are void. With `--json` one object a line.

    Examples:
    `callboard runs events 0f3c… --follow`;
    `callboard runs events 0f3c… -f --from-seq 12 --json`

    Parameters
    ----------
    run
        The run's id.
    follow
        Go on until the run has ended.
    from_seq
        Start at this entry.
    """
    watching = _watching(target) if follow else target.client()
    async with watching as runtime:
        row = await known_run(runtime, run)
        caller = Caller(row.agent_id.tenant, "cli")
        stream = runtime.front.events(caller, row.run_id, from_seq=from_seq)
        show = _Lines().show
        async with aclosing(stream if follow else _until_now(row, stream)) as found:
            async for event in found:
                if target.json:
                    print_json(asdict(event), compact=True)
                else:
                    show(event)


@asynccontextmanager
async def _watching(target: Target) -> AsyncIterator[Runtime]:
    """Yield a client that hears of other processes' model calls, where a NATS is known."""
    async with target.server() as (url, found):
        settings = found
        nats_url = settings.nats_url
        if settings.postgres_url is None and settings.data_dir is not None:
            nats_url = await asyncio.to_thread(url_if_running, settings.data_dir / "nats")
            settings = settings.model_copy(update=dict.fromkeys(NATS_LOGIN))
        if nats_url is None:
            building = build_postgres_runtime(url, settings=settings, client="cli", serve=False)
        else:
            building = build_runtime(nats_url, url, settings=settings, client="cli", serve=False)
        async with building as runtime:
            yield runtime


async def _until_now(
    row: RunRow, stream: AsyncGenerator[RunEvent, None]
) -> AsyncGenerator[RunEvent, None]:
    """Yield the events up to where the log ended when we looked."""
    async with aclosing(stream) as found:
        if row.last_seq < 0 and not row.status.is_terminal:
            return
        async for event in found:
            if event.kind != "delta":
                yield event
            if event.seq >= row.last_seq and not row.status.is_terminal:
                return


class _Lines:
    """Prints events for people: pieces of an answer on one line, entries on lines of their own."""

    def __init__(self) -> None:
        self._attempt, self._is_inside = 1, False

    def show(self, event: RunEvent) -> None:
        """Print one event."""
        if event.kind == "delta":
            data = event.data if isinstance(event.data, dict) else {}
            if "data" in data:  # what an agent shows and is no text
                self._end_line()
                say(f"{event.name}  {short(data['data'])}")
                return
            style = "dim italic" if event.name == "reasoning.delta" else ""
            out = console()
            out.print(Text(str(data.get("text", ""))), end="", style=style, soft_wrap=True)
            out.file.flush()
            self._is_inside = True
            return
        self._end_line()
        if event.attempt > self._attempt:
            say(f"attempt {event.attempt}")
        self._attempt = event.attempt
        at = event.at[:23].replace("T", " ")
        if event.kind == "end":
            say(f"the run has ended {event.name}: {short(event.data)}")
            return
        shown = event.data
        if isinstance(shown, dict):
            shown = {key: value for key, value in shown.items() if key not in ("hash", "id")}
        say("  ".join((str(event.seq), at, event.name, event.position, short(shown or None))))

    def _end_line(self) -> None:
        if self._is_inside:
            say("")
            self._is_inside = False
