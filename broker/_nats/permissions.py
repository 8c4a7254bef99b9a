"""Rights to publish and subscribe: the one source of configuration, documents and tests.

Three kinds of parties: hosts and the program that sets up the streams, in one account with JetStream; outside
services with a publisher's name of their own in that account; and tenants with an account of their
own, which sees of the hosts' account the exported subjects and nothing else. A tenant's token and a
publisher's name stand in the subject, so what a server lets a client publish says which client it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, token
from actors._kernel.stores.outside import Sight
from actors.errors import InvalidNameError
from broker._wire.subjects import Subjects

HOST_INBOX: Final = "_INBOX_host"
"""First token of the subjects on which hosts are answered; no other client may subscribe to it."""
ADMIN_INBOXES: Final = (HOST_INBOX, "_INBOX_admin", "_INBOX_tap")
"""Programs that set up, read and watch are answered here; external clients cannot have these."""
_INBOXES: Final = ("_INBOX", "_R_.")
"""Prefixes of inboxes: those of clients, and their form after an import from another account."""
_OTHER_CLUSTER: Final = re.compile(r"_GR_\.[^.]+\.[^.]+\.")
"""Prefix of the reply subject of a request that came from another cluster."""
_OF_RUNS: Final = ("result", "status", "cancel", "signal", "events", "renew")
"""Verbs about a run, which say nothing of agents that its caller did not reach before."""
REPLY_LIMIT_S: Final = 65 * 60
"""Seconds within which a request may be answered: the longest ask is an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserGrant:
    """The rights of one user.

    Attributes:
        publish: Subject patterns.
        subscribe: Subject patterns; queue groups are not distinguished.
        responses: Messages it may publish to the reply subject of each message it gets, wherever that
            is; 0: none, -1: any number.
        responses_s: Seconds after that message in which they are allowed.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: int = 0
    responses_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A subject of the hosts' account that another account may use.

    Attributes:
        subject: The pattern.
        kind: ``service``: requests go in, answers come back. ``stream``: messages come out.
        streams: Whether a request is answered by more than one message.
        threshold_s: So long the server keeps the way back.
    """

    subject: str
    kind: str = "service"
    streams: bool = False
    threshold_s: int = 0


@dataclass(frozen=True, slots=True)
class Permissions:
    """The patterns of one deployment.

    Attributes:
        namespace: Goes before every subject and stream name.
    """

    namespace: str = ""

    def host(self, *, inbox: str = HOST_INBOX, makes_streams: bool = False) -> UserGrant:
        """Return what a host needs: messages and the gateway.

        It may purge MAIL alone, whose contents are held elsewhere too: of EDGE, which holds what no host
        else does, it can take nothing away.

        Args:
            inbox: Prefix of its reply subjects.
            makes_streams: Whether it may make and change every stream of its account, and delete MAIL,
                which it makes anew when that was rolled back. Who may do that can have the server
                publish as anybody (``republish``) and shorten EDGE. Else the admin has to, by
                `callboard migrate --streams`: before the first host starts, after a release that changes
                them, when they are lost, and when MAIL was rolled back.
        """
        at, mail = self._at, Subjects(self.namespace).stream("MAIL")
        stream_changes = ["STREAM.CREATE.*", "STREAM.UPDATE.*", f"STREAM.DELETE.{mail}"]
        api = [
            "INFO",
            "STREAM.NAMES",
            "STREAM.INFO.*",
            f"STREAM.MSG.GET.{mail}",
            f"STREAM.PURGE.{mail}",
            f"CONSUMER.CREATE.{mail}.>",
            f"CONSUMER.DELETE.{mail}.*",
            f"CONSUMER.MSG.NEXT.{mail}.*",
            *(stream_changes if makes_streams else ()),
        ]
        return UserGrant(
            publish=(
                *at("agent.v1.*.*.*.in", "topic.v1.*.*.*", "dead.v1.*.*.*"),
                *at("host.v1.*", "run.v1.*.*.*.*", "run.v1.*.*.*.*.end"),
                *(f"$JS.API.{what}" for what in api),
                f"$JS.ACK.{mail}.>",
                f"$JS.ACK.*.*.{mail}.>",
            ),
            subscribe=(
                f"{inbox}.>",
                *at("host.v1.*", "ask.v1.>", "api.v1.>", "run.v1.>"),
                "$SRV.>",
            ),
            responses=-1,
            responses_s=REPLY_LIMIT_S,
        )

    def admin(self) -> UserGrant:
        """Return what sets up, changes and looks into the streams: `callboard migrate --streams`, doctor, tap.

        It may make, change and delete the streams of its account, look into them, and hear the
        deployment's traffic. It can neither publish as a host or an external client nor read with
        consumers. But a client that may change streams can have the server publish for it.
        """
        heard_subjects = ("agent.v1.>", "topic.v1.>", "dead.v1.>", "run.v1.>", "ask.v1.>")
        api = (
            "INFO",
            "STREAM.NAMES",
            "STREAM.LIST",
            "STREAM.INFO.*",
            "STREAM.MSG.GET.*",
            "DIRECT.GET.>",
            "STREAM.CREATE.*",
            "STREAM.UPDATE.*",
            "STREAM.DELETE.*",
            "STREAM.LEADER.STEPDOWN.*",
            "CONSUMER.NAMES.*",
            "CONSUMER.LIST.*",
            "CONSUMER.INFO.*.*",
        )
        return UserGrant(
            publish=(*(f"$JS.API.{what}" for what in api), "$SRV.>"),
            subscribe=(*(f"{inbox}.>" for inbox in ADMIN_INBOXES), *self._at(*heard_subjects)),
        )

    def outsider(
        self,
        publisher: str,
        tenant: str = DEFAULT_TENANT,
        *,
        types: Sequence[str] = (),
        inbox: str | None = None,
        sees: Sight = "own",
    ) -> UserGrant:
        """Return what a service may do: publish, post and ask under its own name.

        Args:
            publisher: Its name.
            tenant: The tenant whose agents it may reach.
            types: Which types of agents; all when empty. Topics are not distinguished. With types it
                starts runs by messages and questions only, and asks the hosts only about runs.
            inbox: Prefix of its reply subjects; see `inbox_of`.
            sees: ``tenant``: also runs of its tenant that it did not start, of these types: their live
                progress and tokens, signals to them, and, with no types given, all that the hosts
                tell and do about them; questions with any priority that may interrupt them.

        Raises:
            InvalidNameError: No such names can be.
        """
        publisher_token, tenant_token = (
            token(_check_publisher("publisher", publisher)),
            _tenant_token(tenant),
        )
        type_tokens = tuple(token(AgentId(name, "k").type) for name in types) or ("*",)
        patterns = [
            pattern
            for type_ in type_tokens
            for pattern in (
                f"agent.v1.{tenant_token}.{type_}.*.ext.{publisher_token}",
                f"ask.v1.{tenant_token}.{type_}.*.{publisher_token}",
            )
        ]
        # A subject that names no type would reach all of them.
        verbs = _OF_RUNS if types else ("*",)
        patterns += [f"topic.v1.{tenant_token}.*.*.ext.{publisher_token}"]
        patterns += [f"api.v1.{tenant_token}.{publisher_token}.{verb}" for verb in verbs]
        heard_subjects: tuple[str, ...] = ()
        if sees == "tenant":
            for type_ in type_tokens:
                patterns.append(f"agent.v1.{tenant_token}.{type_}.*.sig.{publisher_token}.*.*")
                patterns.append(f"ask.v1.{tenant_token}.{type_}.*.{publisher_token}.tenant")
            patterns += [] if types else [f"api.v1.{tenant_token}.{publisher_token}.*.tenant"]
            heard_subjects = tuple(f"run.v1.{tenant_token}.{type_}.*.*" for type_ in type_tokens)
        return UserGrant(
            publish=self._at(*patterns),
            subscribe=(f"{inbox or inbox_of(publisher)}.>", *self._at(*heard_subjects)),
            # Only to say that it still listens: a stream of events asks for that.
            responses=10,
            responses_s=60,
        )

    def exports(self, tenant: str) -> tuple[Export, ...]:
        """Return what the hosts' account exports to a tenant's own account: all of it, no more.

        Never a shorter pattern: ``agent.v1.<tenant>.>`` holds ``.in``, on which only hosts may speak.

        Raises:
            InvalidNameError: There cannot be such a tenant.
        """
        tenant_token = _tenant_token(tenant)
        stored_subjects = (
            f"agent.v1.{tenant_token}.*.*.ext.*",
            f"agent.v1.{tenant_token}.*.*.sig.*.*.*",
            f"topic.v1.{tenant_token}.*.*.ext.*",
        )
        asks = self._at(f"ask.v1.{tenant_token}.*.*.*", f"ask.v1.{tenant_token}.*.*.*.tenant")
        apis = self._at(f"api.v1.{tenant_token}.*.*", f"api.v1.{tenant_token}.*.*.tenant")
        (runs,) = self._at(f"run.v1.{tenant_token}.*.*.*")
        return (
            *(Export(subject=subject) for subject in self._at(*stored_subjects)),
            *(Export(subject=ask, threshold_s=REPLY_LIMIT_S) for ask in asks),
            *(Export(subject=api, streams=True, threshold_s=REPLY_LIMIT_S) for api in apis),
            Export(subject=runs, kind="stream"),
        )

    def _at(self, *patterns: str) -> tuple[str, ...]:
        subjects = Subjects(self.namespace)
        return tuple(subjects.prefixed(pattern) for pattern in patterns)


def may_be_answered(reply: str) -> bool:
    """Return whether hosts may publish an answer there: in an inbox that is neither theirs nor the admin's.

    No server checks what its clients give as reply subjects, and a host may publish to them all
    (`UserGrant.responses`). Who is allowed to ask would be allowed whatever hosts are, and more: to delete a
    stream, to speak as another publisher.
    """
    inbox = _OTHER_CLUSTER.sub("", reply, count=1)
    return inbox.startswith(_INBOXES) and inbox.partition(".")[0] not in ADMIN_INBOXES


def inbox_of(publisher: str) -> str:
    """Return the first token of a service's reply subjects: ``_INBOX_<publisher>``.

    No other user of the account may subscribe to these subjects. So two tenants that share an account cannot
    have publishers with the same name.

    Raises:
        InvalidNameError: See `Permissions.outsider`.
    """
    return f"_INBOX_{token(_check_publisher('publisher', publisher))}"


def _check_publisher(what: str, name: str) -> str:
    if f"_INBOX_{name}" in ADMIN_INBOXES:
        rule = "another name: the reply subjects of that one are those of hosts or of the admin"
        raise InvalidNameError(what, name, rule)
    Subjects().external(
        AgentId("t", "k"), name
    )  # raises if the name cannot be a subject's last token
    return name


def _tenant_token(tenant: str) -> str:
    return token(AgentId("t", "k", tenant).tenant)
