"""`callboard env` and `nats-config`: texts that configure other programs, other hosts and the NATS server.

Neither command connects to a server, so neither needs a driver.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from actors._kernel.json import JsonValue
from actors.errors import ContractError
from broker._nats.permissions import inbox_of
from compose._assembly.nats_config import NatsAccounts, Publisher
from compose._assembly.settings import read_settings
from compose._commands.options import DebugFlag, Flag, start_host
from compose._commands.output import Exit, NoDataError, print_json
from compose._commands.terminal import say
from compose.embedded import url_if_running

WHERE: Final = (
    ("CALLBOARD_POSTGRES_URL", "."),
    ("CALLBOARD_NATS_URL", "nats"),
    ("CALLBOARD_REDIS_URL", "redis"),
)
"""Environment variables of the servers' URLs, each with the server's sub-folder."""


async def env(*, data: Path | None = None, json: Flag = False, debug: DebugFlag = False) -> int:
    """Print the URLs of a folder's running servers as lines for a shell.

    `callboard dev` and `callboard host --data DIR` run NATS, PostgreSQL and Valkey on free ports of
    127.0.0.1. Programs of a shell that evaluates these lines connect to the same servers: other hosts,
    `callboard` itself, and services in any language. The URLs have passwords.

    Examples:
    `eval "$(callboard env --data ./data)"`;
    `callboard env --data ./data --json`

    Parameters
    ----------
    data
        Folder of the embedded servers. [env: CALLBOARD_DATA_DIR]
    json
        Print one JSON object.
    """
    del debug  # `compose._cli` reads this option for every command
    folder = data or read_settings().data_dir
    if folder is None:
        raise NoDataError("no folder was named: give --data DIR, or set CALLBOARD_DATA_DIR")
    urls: dict[str, str] = {}
    for name, sub_folder in WHERE:
        if (url := await asyncio.to_thread(url_if_running, folder / sub_folder)) is not None:
            urls[name] = url
    if len(urls) < len(WHERE):
        raise NoDataError(f"no servers run in {folder}: {start_host(folder)}")
    if json:
        print_json(urls)
        return Exit.OK
    for name, url in urls.items():
        say(f"export {name}={shlex.quote(url)}")
    return Exit.OK


async def nats_config(
    *,
    publisher: list[str] | None = None,
    tenant: list[str] | None = None,
    sees: list[str] | None = None,
    nkey: list[str] | None = None,
    namespace: str | None = None,
    hosts_make_streams: bool = False,
    json: Flag = False,
    debug: DebugFlag = False,
) -> None:
    """Print the accounts of a nats-server: its users, and the subjects that each may publish and subscribe to.

    The command connects to no server, and its output has no secret. Each password is a variable of
    nats-server's environment (NATS_<USER>_PASSWORD), and each nkey is a public key. Include the output in
    the server's file, as compose/nats/server.conf does. docs/security.md explains each user's permissions.

    Examples:
    `callboard nats-config --publisher crm --publisher shop > accounts.conf`;
    `callboard nats-config --tenant acme --publisher acme/billing`;
    `callboard nats-config --publisher crm --publisher approvals --sees approvals=tenant`;
    `callboard nats-config --publisher crm --nkey crm=UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4`

    Parameters
    ----------
    publisher
        An external client, as NAME or TENANT/NAME. May be given several times.
    tenant
        A tenant that gets an account of its own, without JetStream. May be given several times.
    sees
        USER=tenant: this publisher sees, signals and cancels all runs of its tenant, not only the runs that it
        started, and may give its own runs any priority. `tenant` alone means all named publishers.
    nkey
        USER=PUBLIC_KEY: this user (host, admin, a publisher or a tenant) logs in with an nkey.
    namespace
        Prefix of every subject and stream. [env: CALLBOARD_NAMESPACE]
    hosts_make_streams
        Let hosts create and change streams. Without it only the admin may do so, by `callboard migrate
        --streams`. A login of a host with this permission can make the server publish as any user.
    json
        Print a JSON object with the users, their permissions, and the configuration as a text.
    """
    del debug  # `compose._cli` reads this option for every command
    publishers = tuple(map(Publisher.parse, publisher or ()))
    accounts = NatsAccounts(
        namespace=read_settings(namespace=namespace).namespace,
        publishers=publishers,
        tenants=tuple(tenant or ()),
        sees_tenant=tuple(_users_that_see(sees or [], [p.user for p in publishers])),
        nkeys=dict(map(_pair, nkey or ())),
        hosts_make_streams=hosts_make_streams,
    )
    if not json:
        say(accounts.text().rstrip("\n"))
        return
    inboxes = {p.user: inbox_of(p.name) for p in accounts.publishers}
    users: list[JsonValue] = [
        {
            "user": user.name,
            "account": user.account,
            "nkey": user.nkey,
            "password_variable": None if user.nkey else user.variable,
            "inbox_prefix": inboxes.get(user.name),
            "permissions": None if user.grant is None else asdict(user.grant),
        }
        for user in accounts.users()
    ]
    print_json({"users": users, "config": accounts.text()})


def _users_that_see(texts: list[str], users: list[str]) -> Iterator[str]:
    for text in texts:
        user, equals, scope = text.rpartition("=")
        if scope != "tenant" or bool(user) != bool(equals):
            raise ContractError(f"--sees {text}: give tenant, or USER=tenant")
        yield from [user] if user else users


def _pair(text: str) -> tuple[str, str]:
    user, equals, key = text.partition("=")
    if not (user and equals and key):
        # The given text may be a secret seed, so the error does not repeat it.
        raise ContractError("--nkey wants USER=PUBLIC_KEY, such as crm=UDXU…")
    return user, key
