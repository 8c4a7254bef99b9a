"""Arguments and options of commands: types, which installation is meant, and the form of the output.

What several commands take is said here once. A number, a span or data that cannot be taken is refused before
anything happens.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

from cyclopts import Parameter, Token

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.runtime.loop.clock import SystemClock
from compose.assembly.settings import Settings, read_settings
from compose.commands.output import Exit, NoDataError, picked, print_json

if TYPE_CHECKING:
    from actors.runtime import Runtime


T = TypeVar("T")
CLIENT_WAIT_S: Final = 5.0
NO_TARGET: Final = (
    "no database was named: give --postgres-url URL or --data DIR, or set CALLBOARD_POSTGRES_URL"
)
NO_BROKER: Final = (
    "no broker was named: give --nats-url URL or --data DIR, or set CALLBOARD_NATS_URL"
)
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit in which options give times and rates."""
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
_MOST_S: Final = 100 * 365 * 86_400
_INT32: Final = 2**31 - 1


def within(low: float, high: float, words: str) -> Parameter:
    """Return what refuses numbers outside of a range, also one of several, with `words` as remedy."""

    def check(_: object, value: float | list[float] | None) -> None:
        given = value if isinstance(value, list) else [value]
        if not all(one is None or low <= one <= high for one in given):  # NaN is in no range
            raise ValueError(words)

    return Parameter(validator=check)


def _agent(_: object, tokens: Sequence[Token]) -> AgentId:
    return AgentId.parse(tokens[0].value)


Flag = Annotated[bool, Parameter(negative="")]
"""Is given or not; there is no `--no-…`."""
JsonFlag = Annotated[Flag, Parameter(help="Print JSON for programs instead of a table for people.")]
DebugFlag = Annotated[Flag, Parameter(help="Show the traceback of an error, and every log line.")]
"""Read by `compose.cli`, for every command alike."""
AllFlag = Annotated[Flag, Parameter(name="--all")]
FollowFlag = Annotated[Flag, Parameter(alias="-f")]

Limit = Annotated[int, within(1, 1_000_000, "Give 1 or more, up to 1000000.")]
"""Number of rows that are shown at most."""
LimitOpt = Annotated[Limit, Parameter(help="At most so many.")]
MostRunsOpt = Annotated[
    Limit, Parameter(help="At most so many runs; a sentence says when there are more.")
]
Seq = Annotated[int, within(0, _INT32, "Give the number of a log entry, 0 or more.")]
FromSeqOpt = Annotated[Seq, Parameter(help="Start at this entry.")]
Count = Annotated[int, within(0, _INT32, "Give 0 or more.")]
PriorityOpt = Annotated[
    int, within(-_INT32, _INT32, "Give a number near 0."), Parameter(help="Lower goes first.")
]
Seconds = Annotated[float, within(0, _MOST_S, "Give seconds, 0 or more.")]
LETTERS: Final = within(1, 2**63 - 1, "Give numbers that `callboard dlq list` shows.")
LettersArg = Annotated[
    list[int] | None,
    Parameter(negative="", help="Numbers that `callboard dlq list` shows."),
    LETTERS,
]

RunIdArg = Annotated[str, Parameter(help="The run's id.")]
AgentArg = Annotated[
    AgentId,
    Parameter(
        converter=_agent, n_tokens=1, accepts_keys=False, help="TYPE/KEY, or TENANT:TYPE/KEY."
    ),
]
TenantOpt = Annotated[str | None, Parameter(help="Only those of this tenant.")]
TypeOpt = Annotated[str | None, Parameter(name="--type")]
StatusOpt = Annotated[list[str] | None, Parameter(negative="")]
ServedArg = Annotated[list[str], Parameter(negative="", help="MODULE:ATTR as of `callboard host`.")]
NamespaceOpt = Annotated[
    str | None, Parameter(help="Goes before every subject. [env: CALLBOARD_NAMESPACE]")
]
OnConflictOpt = Annotated[
    Literal["queue", "join", "reject", "interrupt"],
    Parameter(
        help="When the agent has an open run: wait behind it, join it, be rejected, or cancel it first."
    ),
]
JsonArg = Annotated[str, Parameter(name="JSON", allow_leading_hyphen=True)]
"""Read by `parse_json`."""


def parse_json(text: str, *, what: str) -> JsonValue:
    """Return the data; ``-`` reads it from standard input, ``@FILE`` from a file.

    Raises:
        ContractError: It is no JSON, or there is no such file; the message shows where, and how text
            has to be quoted.
    """
    source = _read(text)
    try:
        return json.loads(source, parse_constant=_refuse)  # type: ignore[no-any-return]
    except RecursionError:
        raise ContractError(f"{what} is nested too deeply") from None
    except ValueError as exc:
        hint = (
            'Write data as JSON, in single quotes for the shell: \'{"city": "Oslo"}\' or \'"text"\''
        )
        raise ContractError(f"{what} is not JSON ({exc}): {source[:80]!r}. {hint}") from exc


def _read(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else "it is no text in UTF-8"
        raise ContractError(f"cannot read {text[1:]}: {problem}; @ names a file") from exc


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def span_s(text: str) -> float:
    """Return a span such as ``90s``, ``15m``, ``12h`` or ``30d`` in seconds.

    Raises:
        ContractError: It is none, or longer than a hundred years.
    """
    found = _SPAN.fullmatch(text.strip())
    seconds = float(found[1]) * SECONDS[found[2]] if found is not None else math.inf
    if seconds > _MOST_S:
        raise ContractError(f"{text!r} is no span: give a number with s, m, h or d, such as 30d")
    return seconds


def instant(option: str, text: str | None) -> datetime | None:
    """Parse an option: an ISO instant, or a span that is subtracted from now (`2h`). None stays None.

    Raises:
        ContractError: It is neither.
    """
    example = "an instant such as 2026-01-31T08:00, or a span such as 2h"
    return _given(option, text, parse=_instant, ago=lambda at: at, example=example)


def day(option: str, text: str | None) -> date | None:
    """Parse an option: a day in UTC, or a span that is subtracted from now (`30d`). None stays None.

    Raises:
        ContractError: It is neither.
    """
    example = "a day in UTC such as 2026-01-31, or a span such as 30d"
    return _given(option, text, parse=date.fromisoformat, ago=datetime.date, example=example)


def _given(
    option: str,
    text: str | None,
    *,
    parse: Callable[[str], T],
    ago: Callable[[datetime], T],
    example: str,
) -> T | None:
    if text is None:
        return None
    try:
        if _SPAN.fullmatch(text.strip()):
            return ago(SystemClock().now() - timedelta(seconds=span_s(text)))
        return parse(text)
    except (ContractError, ValueError, OverflowError):
        raise ContractError(f"{option} {text!r}: give {example}") from None


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Options that every command has.

    Attributes:
        postgres_url: postgresql://user:password@host:port/database. [env: CALLBOARD_POSTGRES_URL]
        data: Folder of an embedded PostgreSQL, instead of a URL. [env: CALLBOARD_DATA_DIR]
        schema: Schema that holds the tables. [env: CALLBOARD_SCHEMA]
        json: Print JSON for programs instead of tables for people.
        debug: Show the traceback of an error, and every log line.
    """

    postgres_url: str | None = None
    data: Path | None = None
    schema: str | None = None
    json: Flag = False
    debug: Flag = False

    def settings(self, **given: object) -> Settings:
        """Return the settings with one server to connect to; options win over the environment.

        Raises:
            ContractError: No server, two of them, or a value that is not allowed.
        """
        if self.postgres_url is not None and self.data is not None:
            raise ContractError("--postgres-url and --data name two databases: give one of them")
        settings = read_settings(
            postgres_url=self.postgres_url, data_dir=self.data, db_schema=self.schema, **given
        )
        if self.data is not None:
            settings = settings.model_copy(update={"postgres_url": None})
        if settings.postgres_url is None and settings.data_dir is None:
            raise ContractError(NO_TARGET)
        return settings

    def client_settings(self) -> Settings:
        """Return the settings of a short-lived client: it waits 5 seconds for a server, not longer.

        Raises:
            NoDataError: `--data` names a folder without data.
        """
        settings = self.settings()
        if settings.start_wait_s is None:
            settings = settings.model_copy(update={"start_wait_s": CLIENT_WAIT_S})
        folder = settings.data_dir
        if settings.postgres_url is None and folder is not None and not _holds_data(folder):
            raise NoDataError(f"{folder} holds no Callboard data: {start_host(folder)}")
        return settings

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Runtime]:
        """Yield a runtime that submits and reads, and executes nothing."""
        # Drivers are loaded when there is a server to connect to: not for help, nor for a mistyped option.
        from compose.assembly.runtime import build_as_set  # noqa: PLC0415

        settings = self.client_settings().model_copy(update={"nats_url": None})
        async with build_as_set(settings, client="cli", serve=False) as runtime:
            yield runtime

    @asynccontextmanager
    async def server(self) -> AsyncIterator[tuple[str, Settings]]:
        """Yield the URL of the server and the settings, for commands below the runtime."""
        settings = self.client_settings()
        if settings.postgres_url is not None:
            yield settings.postgres_url, settings
            return
        assert settings.data_dir is not None
        from compose.assembly.local import local_postgres  # noqa: PLC0415 - as above

        async with local_postgres(settings.data_dir) as url:
            yield url, settings

    def tell(self, data: object, text: str) -> Exit:
        """Print what was done: data for programs, a sentence for people."""
        if self.json:
            print_json(data)
        else:
            from compose.commands.terminal import say  # noqa: PLC0415 - not all have something to show

            say(text)
        return Exit.OK

    def table(
        self,
        found: Iterable[T],
        to_json: str | Callable[[T], object],
        columns: Sequence[str],
        row: Callable[[T], Sequence[object]],
        *,
        empty: str,
    ) -> None:
        """Print what was found: a list for programs, see `picked`; for people a table, or `empty`."""
        if self.json:
            shown = partial(picked, names=to_json) if isinstance(to_json, str) else to_json
            print_json([shown(one) for one in found])
        else:
            from compose.commands.terminal import print_table  # noqa: PLC0415 - as above

            print_table(columns, [row(one) for one in found], empty=empty)


HERE: Final = Target()
"""The default of every command's `target`."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTarget:
    """Options of commands that need the broker and nothing else.

    Attributes:
        nats_url: nats://user:password@host:port, several separated by commas. [env: CALLBOARD_NATS_URL]
        data: Folder of embedded servers that a host runs, instead of a URL. [env: CALLBOARD_DATA_DIR]
        json: Print JSON for programs instead of lines for people.
        debug: Show the traceback of an error, and every log line.
    """

    nats_url: str | None = None
    data: Path | None = None
    namespace: NamespaceOpt = None
    json: Flag = False
    debug: Flag = False

    def found(self) -> tuple[str, Settings]:
        """Return the broker's URL and the settings.

        Raises:
            ContractError: No broker, or two.
            NoDataError: The servers of that folder do not run.
        """
        if self.nats_url is not None and self.data is not None:
            raise ContractError("--nats-url and --data name two brokers: give one of them")
        settings = read_settings(
            nats_url=self.nats_url, data_dir=self.data, namespace=self.namespace
        )
        folder = settings.data_dir
        if self.data is None and settings.nats_url is not None:
            return settings.nats_url, settings
        if folder is None:
            raise ContractError(NO_BROKER)
        from compose.embedded import url_if_running  # noqa: PLC0415 - as above

        url = url_if_running(folder / "nats")
        if url is None:
            raise NoDataError(f"the NATS server of {folder} does not run: {start_host(folder)}")
        return url, settings


BROKER: Final = NatsTarget()
"""The default of every such command's `target`."""


def start_host(folder: Path) -> str:
    """Return the remedy where the servers of a folder do not run."""
    return f"start a host with `callboard host … --data {folder}` first"


def _holds_data(folder: Path) -> bool:
    from compose.embedded import url_if_running  # noqa: PLC0415 - as above

    return (folder / "pgdata").exists() or url_if_running(folder) is not None
