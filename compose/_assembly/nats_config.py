"""The accounts and users of a NATS server for Callboard, as its configuration text.

`broker._nats.permissions` decides the permissions. This module writes them in the form of nats-server. The text
has no secret, because passwords are variables of nats-server's environment, and nkeys are public keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors.errors import ContractError
from broker._nats.permissions import Export, Permissions, UserGrant

HOST: Final = "host"
ADMIN: Final = "admin"
HOSTS_ACCOUNT: Final = "CALLBOARD"
ACCOUNT_LIMITS: Final = "max_connections: 200, max_subscriptions: 10000"
"""Limits of a tenant's account, so that one tenant cannot use up the server's connections."""
_NKEY: Final = re.compile(r"U[A-Z2-7]{55}")
_NO_VARIABLE: Final = re.compile(r"[^A-Z0-9]")
_NO_ACCOUNT: Final = re.compile(r"[^A-Za-z0-9_-]")


class Publisher(NamedTuple):
    """An external client: its name, and the tenant whose agents it reaches."""

    name: str
    tenant: str = DEFAULT_TENANT

    @classmethod
    def parse(cls, text: str) -> Publisher:
        """Return the publisher of ``NAME`` or ``TENANT/NAME``."""
        tenant, slash, name = text.partition("/")
        return cls(name, tenant) if slash else cls(text)

    @property
    def user(self) -> str:
        """The NATS user of this publisher."""
        return self.name if self.tenant == DEFAULT_TENANT else f"{self.tenant}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of the NATS server, and the user's rights.

    Attributes:
        name: The user's name.
        account: The user's account.
        grant: The user's permissions; None for all permissions of the account.
        nkey: The user's public key; None if the user has a password.
    """

    name: str
    account: str
    grant: UserGrant | None
    nkey: str | None = None

    @property
    def variable(self) -> str:
        """The variable of nats-server's environment that holds the password."""
        return f"NATS_{_NO_VARIABLE.sub('_', self.name.upper())}_PASSWORD"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccounts:
    """Hosts, external clients and tenants of one deployment.

    Attributes:
        namespace: Prefix of the deployment's subjects and streams.
        publishers: External clients. A publisher of a tenant in `tenants` is a user of that tenant's account.
        tenants: Tenants with an account of their own.
        sees_tenant: Users of publishers that see all runs of their tenant, not only their own.
        nkeys: Public keys of the users who log in with an nkey, by user name.
        hosts_make_streams: True if hosts, not only the admin, may create and change streams of their account.
    """

    namespace: str = ""
    publishers: tuple[Publisher, ...] = ()
    tenants: tuple[str, ...] = ()
    sees_tenant: tuple[str, ...] = ()
    nkeys: Mapping[str, str] = field(default_factory=dict)
    hosts_make_streams: bool = False

    def users(self) -> list[User]:
        """Return all users that can log in.

        Raises:
            ContractError: Two users have one name or one variable, two publishers would share an inbox, two
                tenants would share an account, a name is not known, or a key is not valid.
        """
        rules = Permissions(self.namespace)
        users = [
            self._user(HOST, HOSTS_ACCOUNT, rules.host(makes_streams=self.hosts_make_streams)),
            self._user(ADMIN, HOSTS_ACCOUNT, rules.admin()),
            *(
                self._user(
                    publisher.user,
                    self._account(publisher.tenant),
                    rules.outsider(
                        publisher.name,
                        publisher.tenant,
                        sees="tenant" if publisher.user in self.sees_tenant else "own",
                    ),
                )
                for publisher in self.publishers
            ),
            *(self._user(tenant, self._account(tenant), None) for tenant in self.tenants),
        ]
        _refuse_twins(users)
        if len({self._account(tenant) for tenant in self.tenants}) < len(self.tenants):
            raise ContractError(
                f"two of the tenants {', '.join(self.tenants)} would share an account"
            )
        inboxes = {
            (self._account(publisher.tenant), publisher.name) for publisher in self.publishers
        }
        if len(inboxes) < len(self.publishers):
            msg = (
                "two publishers of one name would read each other's answers: give one of them another "
                "name, or its tenant an account of its own (--tenant)"
            )
            raise ContractError(msg)
        unknown_publishers = sorted(
            set(self.sees_tenant) - {publisher.user for publisher in self.publishers}
        )
        if unknown_publishers:
            raise ContractError(
                f"--sees {unknown_publishers[0]}=tenant: there is no such --publisher"
            )
        unknown_users = sorted(set(self.nkeys) - {user.name for user in users})
        if unknown_users:
            names = ", ".join(user.name for user in users)
            raise ContractError(
                f"--nkey {unknown_users[0]}: there is no such user; there are {names}"
            )
        return users

    def text(self) -> str:
        """Return an ``accounts`` block, which a server's configuration file can include.

        Raises:
            ContractError: The accounts contradict each other, as in `users`.
        """
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        users = self.users()
        exports = {tenant: Permissions(self.namespace).exports(tenant) for tenant in self.tenants}
        yield "accounts {"
        yield f"  {HOSTS_ACCOUNT} {{"
        yield "    jetstream: enabled"
        yield from _user_lines(users, HOSTS_ACCOUNT)
        if exports:
            yield "    exports: ["
            for tenant, patterns in exports.items():
                for export in patterns:
                    yield f"      {{ {_export(export)}, accounts: [{self._account(tenant)}] }}"
            yield "    ]"
        yield "  }"
        for tenant, patterns in exports.items():
            yield f"  {self._account(tenant)} {{"
            yield f"    limits: {{ {ACCOUNT_LIMITS} }}"
            yield from _user_lines(users, self._account(tenant))
            yield "    imports: ["
            for export in patterns:
                source = f'account: {HOSTS_ACCOUNT}, subject: "{export.subject}"'
                yield f"      {{ {export.kind}: {{ {source} }} }}"
            yield "    ]"
            yield "  }"
        yield "}"

    def _user(self, name: str, account: str, grant: UserGrant | None) -> User:
        nkey = self.nkeys.get(name)
        if nkey is not None and _NKEY.fullmatch(nkey) is None:
            problem = "is not a public key of a user (U and 55 more characters)"
            # A seed is a secret, so the error does not repeat it.
            raise ContractError(
                f"--nkey {name}: {'a seed' if nkey[:1] == 'S' else nkey!r} {problem}"
            )
        return User(name=name, account=account, grant=grant, nkey=nkey)

    def _account(self, tenant: str) -> str:
        if tenant not in self.tenants:
            return HOSTS_ACCOUNT
        return f"TENANT_{_NO_ACCOUNT.sub('_', tenant)}"


def _refuse_twins(users: list[User]) -> None:
    names_by_mark: dict[str, str] = {}
    for user in users:
        for mark in (user.name, user.variable):
            if mark in names_by_mark:
                msg = f"users {names_by_mark[mark]!r} and {user.name!r} are both {mark}: rename one of them"
                raise ContractError(msg)
        names_by_mark |= {user.name: user.name, user.variable: user.name}


def _user_lines(users: list[User], account: str) -> Iterator[str]:
    yield "    users: ["
    for user in users:
        if user.account != account:
            continue
        login = f"user: {json.dumps(user.name, ensure_ascii=False)}, password: ${user.variable}"
        if user.nkey is not None:
            login = f"nkey: {user.nkey}"
        if user.grant is None:
            yield f"      {{ {login} }}"
            continue
        yield f"      {{ {login}, permissions: {{"
        yield from _grant_lines(user.grant)
        yield "      } }"
    yield "    ]"


def _grant_lines(grant: UserGrant) -> Iterator[str]:
    for verb, patterns in (("publish", grant.publish), ("subscribe", grant.subscribe)):
        yield f"        {verb}: ["
        yield from (f"          {json.dumps(pattern)}" for pattern in patterns)
        yield "        ]"
    if grant.responses:
        limits = f'max: {grant.responses}, expires: "{grant.responses_s}s"'
        yield f"        allow_responses: {{ {limits} }}"


def _export(export: Export) -> str:
    words = [f"{export.kind}: {json.dumps(export.subject)}"]
    if export.streams:
        words.append("response: stream")
    if export.threshold_s:
        words.append(f'threshold: "{export.threshold_s}s"')
    return ", ".join(words)
