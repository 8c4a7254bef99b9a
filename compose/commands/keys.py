"""`callboard nats-config`: accounts, users and permissions of a NATS server, ready to be included."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from broker.permissions import inbox_of
from compose.commands.output import print_json, say
from compose.nats_config import NatsAccounts, Publisher
from compose.settings import read_settings

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue


async def nats_config(
    *,
    publisher: list[str] | None = None,
    tenant: list[str] | None = None,
    nkey: list[str] | None = None,
    namespace: str | None = None,
    hosts_make_streams: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the accounts of a nats-server: who may log in, and what they may publish and hear.

    Connects to nothing and holds no secret: each password is a variable of nats-server's environment
    (NATS_<USER>_PASSWORD), each nkey a public key. Include the output in the server's file, as
    compose/nats/server.conf does. docs/security.md says what each party may do, and why.

    Examples:
    `callboard nats-config --publisher crm --publisher shop > accounts.conf`;
    `callboard nats-config --tenant acme --publisher acme/billing`;
    `callboard nats-config --publisher crm --nkey crm=UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4`

    Parameters
    ----------
    publisher
        An outside service, as NAME or TENANT/NAME; several times.
    tenant
        Who gets an account of their own, without JetStream; several times.
    nkey
        USER=PUBLIC_KEY: that user logs in with an nkey (host, admin, a publisher, a tenant).
    namespace
        Goes before every subject and stream. [env: CALLBOARD_NAMESPACE]
    hosts_make_streams
        With --no-hosts-make-streams the admin has to make them, by `callboard migrate --streams`.
    json
        Print the users with their permissions as JSON, and the configuration as a text in it.
    debug
        Show the traceback of an error.
    """
    del debug  # read by `compose.cli`, for every command alike
    accounts = NatsAccounts(
        namespace=read_settings(namespace=namespace).namespace,
        publishers=tuple(map(Publisher.parse, publisher or ())),
        tenants=tuple(tenant or ()),
        nkeys=dict(map(_pair, nkey or ())),
        hosts_make_streams=hosts_make_streams,
    )
    if not json:
        say(accounts.text().rstrip("\n"))
        return
    inboxes = {one.user: inbox_of(one.name) for one in accounts.publishers}
    users: list[JsonValue] = [
        {
            "user": user.name, "account": user.account, "nkey": user.nkey,
            "password_variable": None if user.nkey else user.variable,
            "inbox_prefix": inboxes.get(user.name),
            "permissions": None if user.grant is None else asdict(user.grant),
        }
        for user in accounts.users()
    ]  # fmt: skip
    print_json({"users": users, "config": accounts.text()})


def _pair(text: str) -> tuple[str, str]:
    user, equals, key = text.partition("=")
    if not (user and equals and key):
        # What was given may be a seed: it is not repeated.
        raise ContractError("--nkey wants USER=PUBLIC_KEY, such as crm=UDXU…")
    return user, key
