"""Arguments and options of commands: their types, the servers to connect to, and the form of the output.

Options of several commands are defined here once. An invalid number, span or JSON text is refused before a
command connects to a server.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from cyclopts import Parameter, Token, convert

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._runtime.loop.clock import SystemClock
from actors.errors import ContractError
from compose._assembly.settings import Settings, read_settings
from compose._commands.output import Exit, NoDataError, pick, print_json

if TYPE_CHECKING:
    from actors._runtime import Runtime


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
_WHOLE: Final = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_MOST_S: Final = 100 * 365 * 86_400
_INT32: Final = 2**31 - 1


def within(low: float, high: float, what: str = "") -> Parameter:
    """Return a converter and validator of one number or a list: outside of the range they raise ValueError.

    The text names the range and `what` the numbers are, such as ``seconds``.
    """
    text = f"Give {what}{', ' * bool(what)}{_number_text(low)} to {_number_text(high)}."

    def check(_: object, value: float | list[float] | None) -> None:
        numbers = value if isinstance(value, list) else [value]
        if not all(n is None or low <= n <= high for n in numbers):  # NaN is in no range
            raise ValueError(text)

    def parse(hint: Any, tokens: Sequence[Token]) -> Any:
        # The parser would round: `dlq discard 1.5` would discard number 2.
        is_whole = hint is not float and "float" not in str(hint)
        if is_whole and not all(_WHOLE.fullmatch(token.value) for token in tokens):
            raise ValueError(text)
        return convert(hint, tokens)

    return Parameter(validator=check, converter=parse)


def _number_text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.10g}"


def within_setting(name: str, what: str = "") -> Parameter:
    """Return a validator for an option that overrides a setting: the range is that of the setting."""
    bounds = Settings.model_fields[name].metadata
    low, high = (next(getattr(b, end) for b in bounds if hasattr(b, end)) for end in ("ge", "le"))
    return within(low, high, what)


def _agent(_: object, tokens: Sequence[Token]) -> AgentId:
    return AgentId.parse(tokens[0].value)


Flag = Annotated[bool, Parameter(negative="")]
"""An option without a value. It has no `--no-…` form."""
JsonFlag = Annotated[Flag, Parameter(help="Print JSON for programs instead of a table for people.")]
DebugFlag = Annotated[Flag, Parameter(help="Show the traceback of an error, and every log line.")]
"""Shows tracebacks. `compose._cli` reads it for every command."""
AllFlag = Annotated[Flag, Parameter(name="--all")]
FollowFlag = Annotated[Flag, Parameter(alias="-f")]

Limit = Annotated[int, within(1, 1_000_000)]
"""Greatest number of rows that a command shows, 1 to 1,000,000."""
LimitOpt = Annotated[Limit, Parameter(help="Show at most this number of rows.")]
MostRunsOpt = Annotated[
    Limit, Parameter(help="Show at most this number of runs. A line says if there are more.")
]
Seq = Annotated[int, within(0, _INT32, "the number of a log entry")]
FromSeqOpt = Annotated[Seq, Parameter(help="Start at this entry.")]
Count = Annotated[int, within(0, _INT32)]
PriorityOpt = Annotated[
    int, within(-_INT32, _INT32), Parameter(help="Runs with a lower number start first.")
]
Seconds = Annotated[float, within(0, _MOST_S, "seconds")]
LeaseOpt = Annotated[float, within_setting("lease_s", "seconds")]
LETTERS: Final = within(1, 2**63 - 1, "numbers that `callboard dlq list` shows")
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
TenantOpt = Annotated[str | None, Parameter(help="Only rows of this tenant.")]
TypeOpt = Annotated[str | None, Parameter(name="--type")]
StatusOpt = Annotated[list[str] | None, Parameter(negative="")]
ServedArg = Annotated[list[str], Parameter(negative="", help="MODULE:ATTR as of `callboard host`.")]
NamespaceOpt = Annotated[
    str | None, Parameter(help="Prefix of every subject. [env: CALLBOARD_NAMESPACE]")
]
OnConflictOpt = Annotated[
    Literal["queue", "join", "reject", "interrupt"],
    Parameter(
        help="When the agent has an open run: wait behind it, join it, be rejected, or cancel it first."
    ),
]
JsonArg = Annotated[str, Parameter(name="JSON", allow_leading_hyphen=True)]
"""JSON text, `-` or `@FILE`, which `parse_json` reads."""


def parse_json(text: str, *, what: str) -> JsonValue:
    """Return the data; ``-`` reads it from standard input, ``@FILE`` from a file.

    Raises:
        ContractError: The text is not JSON, or the file cannot be read. The message has the position of
            the mistake, and shows how to quote JSON for a shell.
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
        problem = exc.strerror if isinstance(exc, OSError) else "it is not text in UTF-8"
        raise ContractError(f"cannot read {text[1:]}: {problem}; @ names a file") from exc


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def span_s(text: str) -> float:
    """Return a span such as ``90s``, ``15m``, ``12h`` or ``30d`` in seconds.

    Raises:
        ContractError: The text is not a span, or the span is longer than 100 years of 365 days.
    """
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * SECONDS[match[2]] if match is not None else math.inf
    if seconds > _MOST_S:
        raise ContractError(f"{text!r} is not a span: give a number with s, m, h or d, such as 30d")
    return seconds


def instant(option: str, text: str | None) -> datetime | None:
    """Return the instant of an option's text; None for None.

    The text is an ISO 8601 instant, in UTC if it has no offset, or a span that is subtracted from now (`2h`).

    Raises:
        ContractError: The text is neither.
    """
    example = "an instant such as 2026-01-31T08:00, or a span such as 2h"
    return _parse_time(option, text, parse=_instant, ago=lambda at: at, example=example)


def day(option: str, text: str | None) -> date | None:
    """Return the day in UTC of an option's text; None for None.

    The text is an ISO 8601 day, or a span that is subtracted from now (`30d`).

    Raises:
        ContractError: The text is neither.
    """
    example = "a day in UTC such as 2026-01-31, or a span such as 30d"
    return _parse_time(option, text, parse=date.fromisoformat, ago=datetime.date, example=example)


def _parse_time(
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
    """Options of each command that connects to the database.

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

    def settings(self, **overrides: object) -> Settings:
        """Return the settings with one database to connect to. Options override the environment.

        Raises:
            ContractError: The options and the environment name no database, the options name two, or a
                value is not allowed.
        """
        if self.postgres_url is not None and self.data is not None:
            raise ContractError("--postgres-url and --data name two databases: give one of them")
        settings = read_settings(
            postgres_url=self.postgres_url, data_dir=self.data, db_schema=self.schema, **overrides
        )
        # The option wins over CALLBOARD_POSTGRES_URL of the environment.
        if self.data is not None:
            settings = settings.model_copy(update={"postgres_url": None})
        if settings.postgres_url is None and settings.data_dir is None:
            raise ContractError(NO_TARGET)
        return settings

    def client_settings(self) -> Settings:
        """Return the settings of a short-lived client.

        It waits 5 s for a server unless CALLBOARD_START_WAIT_S is set.

        Raises:
            NoDataError: The folder of `--data` or CALLBOARD_DATA_DIR has no data.
        """
        settings = self.settings()
        if settings.start_wait_s is None:
            settings = settings.model_copy(update={"start_wait_s": CLIENT_WAIT_S})
        folder = settings.data_dir
        if settings.postgres_url is None and folder is not None:
            from compose.embedded import url_if_running  # noqa: PLC0415 - it loads the servers' module

            if not (folder / "pgdata").exists() and url_if_running(folder) is None:
                raise NoDataError(f"{folder} holds no Callboard data: {start_host(folder)}")
        return settings

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Runtime]:
        """Yield a runtime that submits messages and reads, and executes no runs."""
        # Drivers are imported just before the connection, so that help and mistyped options answer fast.
        from compose._assembly.runtime import build_as_set  # noqa: PLC0415

        settings = self.client_settings().model_copy(update={"nats_url": None})
        async with build_as_set(settings, client="cli", serve=False) as runtime:
            yield runtime

    @asynccontextmanager
    async def database(self) -> AsyncIterator[tuple[str, Settings]]:
        """Yield the database's URL and the settings, for commands that use the database without a runtime."""
        settings = self.client_settings()
        if settings.postgres_url is not None:
            yield settings.postgres_url, settings
            return
        assert settings.data_dir is not None
        from compose._assembly.local import local_postgres  # noqa: PLC0415 - as above

        async with local_postgres(settings.data_dir) as url:
            yield url, settings

    def tell(self, data: object, text: str) -> Exit:
        """Print the result of a command: `data` with `--json`, else the sentence `text`."""
        if self.json:
            print_json(data)
        else:
            from compose._commands.terminal import say  # noqa: PLC0415 - only commands that print need it

            say(text)
        return Exit.OK

    def table(
        self,
        rows: Iterable[T],
        to_json: str | Callable[[T], object],
        columns: Sequence[str],
        row: Callable[[T], Sequence[object]],
        *,
        empty_text: str,
    ) -> None:
        """Print rows: a JSON list with `--json` (its keys by `pick`), else a table or `empty_text`."""
        if self.json:
            to_data = partial(pick, columns_text=to_json) if isinstance(to_json, str) else to_json
            print_json([to_data(r) for r in rows])
        else:
            from compose._commands.terminal import print_table  # noqa: PLC0415 - as above

            print_table(columns, [row(r) for r in rows], empty_text=empty_text)


HERE: Final = Target()
"""The default of every command's `target`."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTarget:
    """Options of commands that need only the broker.

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

    def server(self) -> tuple[str, Settings]:
        """Return the broker's URL and the settings.

        Raises:
            ContractError: The options and the environment name no broker, or the options name two.
            NoDataError: The NATS server of the folder does not run.
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
"""The default of `target` in each command that needs only the broker."""


def start_host(folder: Path) -> str:
    """Return the remedy for an error about a folder whose servers do not run."""
    return f"start a host with `callboard host … --data {shlex.quote(str(folder))}` first"
