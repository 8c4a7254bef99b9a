"""Which broker a command talks to, and how it prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from compose.commands.exits import NoDataError
from compose.embedded import url_if_running
from compose.settings import read_settings

if TYPE_CHECKING:
    from compose.settings import Settings

NO_BROKER = "no broker was named: give --nats-url URL or --data DIR, or set CALLBOARD_NATS_URL"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTarget:
    """Options of commands that need the broker and nothing else.

    Attributes:
        nats_url: nats://user:password@host:port, several separated by commas. [env: CALLBOARD_NATS_URL]
        data: Folder of embedded servers that a host runs, instead of a URL. [env: CALLBOARD_DATA_DIR]
        namespace: Goes before every subject. [env: CALLBOARD_NAMESPACE]
        json: Print JSON for programs instead of lines for people.
        debug: Show the traceback of an error, and every log line.
    """

    nats_url: str | None = None
    data: Path | None = None
    namespace: str | None = None
    json: Annotated[bool, Parameter(negative="")] = False
    debug: Annotated[bool, Parameter(negative="")] = False

    def found(self) -> tuple[str, Settings]:
        """Return the broker's URL and the settings.

        Raises:
            ContractError: No broker, or two.
            NoDataError: Nobody runs the servers of that folder.
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
        url = url_if_running(folder / "nats")
        if url is None:
            remedy = f"start a host with `callboard host … --data {folder}` first"
            raise NoDataError(f"nobody runs the NATS server of {folder}: {remedy}")
        return url, settings


BROKER = NatsTarget()
"""The default of every such command's `target`."""
