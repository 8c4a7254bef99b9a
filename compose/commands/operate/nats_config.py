"""`callboard nats-config`: accounts, users and permissions of a NATS server, ready to be included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from broker.nats.permissions import inbox_of
from compose.assembly.nats_config import NatsAccounts, Publisher
from compose.assembly.settings import read_settings
from compose.commands.options import DebugFlag, Flag
from compose.commands.output import print_json
from compose.commands.terminal import say


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
    """Print the accounts of a nats-server: who may log in, and what they may publish and hear.

    Connects to nothing and holds no secret: each password is a variable of nats-server's environment
    (NATS_<USER>_PASSWORD), each nkey a public key. Include the output in the server's file, as
    compose/nats/server.conf does. docs/security.md says what each party may do, and why.

    Examples:
    `callboard nats-config --publisher crm --publisher shop > accounts.conf`;
    `callboard nats-config --tenant acme --publisher acme/billing`;
    `callboard nats-config --publisher crm --publisher approvals --sees approvals=tenant`;
    `callboard nats-config --publisher crm --nkey crm=UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4`

    Parameters
    ----------
    publisher
        An outside service, as NAME or TENANT/NAME; several times.
    tenant
        Who gets an account of their own, without JetStream; several times.
    sees
        USER=tenant: that publisher sees, signals and cancels all runs of its tenant, not only those that it
        started, and may give its own any priority; tenant alone: all publishers named.
    nkey
        USER=PUBLIC_KEY: that user logs in with an nkey (host, admin, a publisher, a tenant).
    namespace
        Goes before every subject and stream. [env: CALLBOARD_NAMESPACE]
    hosts_make_streams
        Let hosts make and change streams, and not the admin alone, by `callboard migrate --streams`. A host's
        login can then have the server publish as any user.
    json
        Print the users with their permissions as JSON, and the configuration as a text in it.
    """
    del debug  # read by `compose.cli`, for every command alike
    publishers = tuple(map(Publisher.parse, publisher or ()))
    accounts = NatsAccounts(
        namespace=read_settings(namespace=namespace).namespace,
        publishers=publishers,
        tenants=tuple(tenant or ()),
        sees_tenant=tuple(_seeing(sees or [], [one.user for one in publishers])),
        nkeys=dict(map(_pair, nkey or ())),
        hosts_make_streams=hosts_make_streams,
    )
    if not json:
        say(accounts.text().rstrip("\n"))
        return
    inboxes = {one.user: inbox_of(one.name) for one in accounts.publishers}
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


def _seeing(given: list[str], users: list[str]) -> Iterator[str]:
    for text in given:
        user, equals, what = text.rpartition("=")
        if what != "tenant" or bool(user) != bool(equals):
            raise ContractError(f"--sees {text}: give tenant, or USER=tenant")
        yield from [user] if user else users


def _pair(text: str) -> tuple[str, str]:
    user, equals, key = text.partition("=")
    if not (user and equals and key):
        # What was given may be a seed: it is not repeated.
        raise ContractError("--nkey wants USER=PUBLIC_KEY, such as crm=UDXU…")
    return user, key
