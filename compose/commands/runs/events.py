"""`callboard runs events`: print the events of a run as they occur."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict

from rich.text import Text

from actors.kernel.runtime.rows import RunRow
from actors.kernel.stores.outside import Caller, RunEvent
from actors.runtime import Runtime
from compose.assembly.runtime import build_as_set, settings_of_client
from compose.commands.options import HERE, FollowFlag, FromSeqOpt, RunIdArg, Target
from compose.commands.output import print_json, short
from compose.commands.runs.list import known_run
from compose.commands.terminal import console, say


async def events(
    run: RunIdArg, /, *, follow: FollowFlag = False, from_seq: FromSeqOpt = 0, target: Target = HERE
) -> None:
    """Print the events of a run: entries of its log, pieces of models' answers, and its end.

    Without `--follow` the command ends at the present end of the log. To continue after an interruption, give
    `--from-seq` the number after the last entry that was shown. With `--follow`, pieces of an answer
    are shown as they arrive, if CALLBOARD_NATS_URL or the folder names the hosts' NATS server. Pieces are
    never stored. When the attempt number grows, the pieces of the attempt before are void. With `--json`
    each line is one object.

    Examples: `callboard runs events 0f3c… --follow`;
    `callboard runs events 0f3c… -f --from-seq 12 --json`

    Parameters
    ----------
    follow
        Continue until the run has ended.
    """
    watching = _watching(target) if follow else target.client()
    async with watching as runtime:
        row = await known_run(runtime, run)
        caller = Caller(row.agent_id.tenant, "cli", sees="tenant")
        stream = runtime.front.events(caller, row.run_id, from_seq=from_seq)
        show = _EventPrinter().show
        async with aclosing(stream if follow else _until_now(row, stream)) as found:
            async for event in found:
                if target.json:
                    print_json(asdict(event), compact=True)
                else:
                    show(event)


@asynccontextmanager
async def _watching(target: Target) -> AsyncIterator[Runtime]:
    """Yield a client that receives the pieces of other processes' model calls if a NATS server is known."""
    async with (
        settings_of_client(target.client_settings()) as settings,
        build_as_set(settings, client="cli", serve=False) as runtime,
    ):
        yield runtime


async def _until_now(
    row: RunRow, stream: AsyncGenerator[RunEvent, None]
) -> AsyncGenerator[RunEvent, None]:
    """Yield the events up to the end of the log at the time of the read."""
    async with aclosing(stream) as found:
        if row.last_seq < 0 and not row.status.is_terminal:
            return
        async for event in found:
            if event.kind != "delta":
                yield event
            if event.seq >= row.last_seq and not row.status.is_terminal:
                return


class _EventPrinter:
    """A printer of events for people: the pieces of an answer on one line, each entry on its own line."""

    def __init__(self) -> None:
        self._attempt, self._is_inside = 1, False

    def show(self, event: RunEvent) -> None:
        """Print one event."""
        if event.kind == "delta":
            data = event.data if isinstance(event.data, dict) else {}
            if "data" in data:  # the agent emitted a value that is not text
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
