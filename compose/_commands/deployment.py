"""The deployment that a command uses: a running server, with `--server URL`, or the database.

A command sends the same requests either way. Over the database, the application of `callboard serve` answers
them in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._runtime.replay.verdict import known_id, row_of
from actors.errors import ContractError, UnknownRunError
from compose._assembly.settings import read_settings
from compose._commands.options import Flag, Target
from compose._commands.output import NoDataError

if TYPE_CHECKING:
    from compose._client.callboard import Callboard

PRINCIPAL: Final = "cli"
"""The name in audit rows about changes over the database."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(Target):
    """Options of commands that use a server or a database.

    Attributes:
        server: http://HOST:PORT of a running `callboard serve`, in place of a database or a folder. The tenant
            is that of the token. The token is in the environment variable CALLBOARD_API_TOKEN, or in a file.
        token_file: File with the token for --server. Default: CALLBOARD_API_TOKEN.
    """

    server: str | None = None
    token_file: Path | None = None
    # Again, because cyclopts evaluates the annotations of all fields in the module of this class.
    json: Flag = False
    debug: Flag = False

    @property
    def is_named(self) -> bool:
        """True if an option names a server or a database, and not the environment."""
        return bool(self.server or self.postgres_url or self.data or self.token_file)

    @asynccontextmanager
    async def open(
        self, *, tenant: str = DEFAULT_TENANT, run: str | None = None, principal: str = PRINCIPAL
    ) -> AsyncIterator[Callboard]:
        """Yield a client of the deployment.

        Args:
            tenant: The tenant of the requests, over the database.
            run: A run whose tenant it is instead: a client of the database may name any run.
            principal: The name in audit rows, over the database.

        Raises:
            ContractError: Options contradict each other, or name no deployment.
            NoDataError: The file of the token cannot be read, or the folder of `--data` has no data.
        """
        # Imported just before the connection, so that help and mistyped options answer fast.
        from compose._client.callboard import Callboard  # noqa: PLC0415

        if self.server is None:
            if self.token_file is not None:
                raise ContractError("--token-file: the token is for --server URL, which is missing")
            async with self.client() as runtime:
                if run is not None:
                    # The API answers for a run that is not there, as it does at a server.
                    with suppress(UnknownRunError):
                        tenant = (await row_of(runtime.store, known_id(run))).agent_id.tenant
                async with Callboard.over(runtime, tenant=tenant, principal=principal) as callboard:
                    yield callboard
            return
        self.refuse_with_server(postgres_url=self.postgres_url, data=self.data, schema=self.schema)
        if tenant != DEFAULT_TENANT:
            raise ContractError("--tenant: the tenant of --server is that of the token")
        token = self._token()
        try:
            client = Callboard(self.server, token=token)
        except ContractError as exc:
            raise ContractError(f"--server {exc}") from None
        async with client as callboard:
            yield callboard

    def refuse_with_server(self, **others: object) -> None:
        """Check that none of these options is given beside `--server`. They name another place.

        Raises:
            ContractError: One of them is.
        """
        for name, value in others.items():
            if self.server is not None and value:
                option = name.replace("_", "-")
                raise ContractError(f"--server and --{option} do not go together: leave out one")

    def _token(self) -> str | None:
        if self.token_file is None:
            token = read_settings().api_token
        else:
            try:
                token = self.token_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as exc:
                problem = exc.strerror if isinstance(exc, OSError) else "it is not text"
                remedy = "Give the file of a token of `callboard tokens create`"
                raise NoDataError(f"{self.token_file}: {problem}. {remedy}") from exc
        token = (token or "").strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ContractError("the token has other characters than a token has: copy it again")
        return token or None


DEPLOYMENT: Final = Deployment()
"""The default of `deployment` in each command."""


@contextmanager
def repeat_hint(how: str) -> Iterator[None]:
    """Let an error about a server that does not answer say how to repeat the request and do it once."""
    from compose._client.http import ApiUnreachableError  # noqa: PLC0415 - as in `Deployment.open`

    try:
        yield
    except ApiUnreachableError as exc:
        raise ApiUnreachableError(exc.url, exc.problem, f"{exc.remedy}: {how}") from exc


@contextmanager
def check_hint(command: str) -> Iterator[None]:
    """Let an error about a lost answer name the command that shows whether the change was made.

    For a change that is made twice if it is sent twice.
    """
    from compose._client.http import ApiUnreachableError  # noqa: PLC0415 - as in `Deployment.open`

    try:
        yield
    except ApiUnreachableError as exc:
        hint = f"look with `{command} --server {exc.url}`"
        remedy = f"The request may have been executed. Before you repeat it, {hint}"
        raise ApiUnreachableError(exc.url, exc.problem, remedy) from exc
