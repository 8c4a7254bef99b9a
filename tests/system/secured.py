"""A nats-server with the shipped configuration, and logins of its users."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from compose._assembly.nats_config import NatsAccounts, Publisher
from compose._cli import run
from tests.integration.broker.lines import plain_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHIPPED: Final = Path(__file__).parents[2] / "compose" / "nats"
ACCOUNTS: Final = NatsAccounts(
    publishers=(
        Publisher("crm"),
        Publisher("shop"),
        Publisher("ops"),
        Publisher("billing", "acme"),
    ),
    tenants=("acme",),
    sees_tenant=("ops",),
)


@asynccontextmanager
async def secured_server(folder: Path, accounts: NatsAccounts = ACCOUNTS) -> AsyncIterator[int]:
    """Yield the port of a server with the shipped `server.conf` and these accounts."""
    (folder / "accounts.conf").write_text(accounts.text())
    config = (SHIPPED / "server.conf").read_text()
    for shipped, ours in (
        ("/data/jetstream", str(folder / "store")),
        ('"0.0.0.0:8222"', '"127.0.0.1:-1"'),
        ("sync_interval: always", "sync_interval: 2m"),  # no data here has to survive a power cut
    ):
        assert shipped in config
        config = config.replace(shipped, ours)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVER_NAME", "secured")
        for user in accounts.users():
            patch.setenv(user.variable, password_of(user.name))
        async with plain_server(folder, config) as port:
            yield port


async def make_streams(port: int, postgres_url: str, schema: str) -> None:
    """Create the streams as the admin, like `callboard migrate --streams`."""
    arguments = ["migrate", "--streams", "--postgres-url", postgres_url, "--schema", schema]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLBOARD_NATS_URL", url_of(port, "admin"))
        assert await asyncio.to_thread(run, arguments) == 0


def password_of(user: str) -> str:
    """Return the password of a user of this server."""
    return f"pw-of-{user}"


def url_of(port: int, user: str) -> str:
    """Return the login URL of a user."""
    return f"nats://{user}:{password_of(user)}@127.0.0.1:{port}"
