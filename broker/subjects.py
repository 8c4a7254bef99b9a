"""Subjects and stream names as values: the only place that builds or takes them apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from actors.errors import InvalidNameError
from actors.kernel.runtime.ids import (
    KEY_RULE,
    AgentId,
    RunId,
    TopicId,
    check_name,
    partition_hash,
    token,
)
from actors.kernel.runtime.shards import PARTITIONS, TOPICS, place_of, scope_of
from broker.errors import SubjectError
from broker.headers import TARGET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.runtime.ids import ShardId

StreamName: TypeAlias = Literal["MAIL", "EDGE", "TOPIC", "DEAD"]

NAMESPACE_RULE: Final = "up to 32 of a-z, 0-9, '_' and '-'"
_NAMESPACE: Final = re.compile(r"[a-z0-9_-]{0,32}")
_HASHED: Final = re.compile(r"h-[0-9a-f]{32}")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")
_ESCAPE: Final = re.compile(r"(?:%[0-9A-F]{2})+")


class Origin(NamedTuple):
    """Who published a sourced message, and to what, as the origin subject says it.

    Attributes:
        agent: The addressed agent.
        publisher: The outside service; the broker's permissions vouch for it.
        run_id: The run a signal is for; None for a message.
        name: The signal's name; None for a message.
    """

    agent: AgentId
    publisher: str
    run_id: RunId | None = None
    name: str | None = None


class ApiOrigin(NamedTuple):
    """Who asks what of the hosts, as the subject of the request says it."""

    tenant: str
    publisher: str
    verb: str


class PostOrigin(NamedTuple):
    """Who published a sourced post, and where, as the origin subject says it."""

    topic: TopicId
    publisher: str


def untoken(text: str) -> str:
    """Return the name of which `token` made this.

    Raises:
        SubjectError: `token` does not make such a token, or made it by hashing a long name.
    """
    if _ESCAPED.fullmatch(text) is None:
        raise SubjectError(text, "is not a token of letters, digits, '_', '-' and %XX")
    if _HASHED.fullmatch(text):
        raise SubjectError(text, f"is the hash of a long name; header {TARGET} must tell it")
    if "%" not in text:
        return text
    try:
        name = _ESCAPE.sub(lambda m: bytes.fromhex(m.group().replace("%", "")).decode(), text)
    except UnicodeDecodeError as exc:
        raise SubjectError(text, "its escaped bytes are no UTF-8") from exc
    if token(name) != text:
        raise SubjectError(text, "is not in canonical form")
    return name


@lru_cache(maxsize=65_536)
def has_hash(agent: AgentId) -> bool:
    """Return whether the agent's subjects hold a hash, so that header Actor-Target must tell it."""
    return any(_HASHED.fullmatch(part) for part in _address(agent).split("."))


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one deployment.

    Attributes:
        namespace: Goes before every subject (``<ns>.``) and stream name (``<ns>_``).
        partitions: Of each type; fixed for the life of a deployment.
    """

    namespace: str = ""
    partitions: int = PARTITIONS

    def __post_init__(self) -> None:
        if _NAMESPACE.fullmatch(self.namespace) is None:
            raise InvalidNameError("namespace", self.namespace, NAMESPACE_RULE)

    # --- building -----------------------------------------------------------------------------

    def prefixed(self, subject: str) -> str:
        """Return a subject or pattern of the grammar as it is in this namespace."""
        return f"{self.namespace}.{subject}" if self.namespace else subject

    def inbox(self, agent: AgentId) -> str:
        """Return where hosts publish mail for the agent."""
        return self.prefixed(f"agent.v1.{_address(agent)}.in")

    def external(self, agent: AgentId, publisher: str) -> str:
        """Return where an outside service publishes messages for the agent."""
        return self.prefixed(f"agent.v1.{_address(agent)}.ext.{_publisher(publisher)}")

    def signal(self, agent: AgentId, publisher: str, run_id: RunId, name: str) -> str:
        """Return where an outside service publishes a signal for a run of the agent."""
        head = f"agent.v1.{_address(agent)}.sig.{_publisher(publisher)}"
        return self.prefixed(f"{head}.{token(run_id)}.{token(_name('signal', name))}")

    def topic(self, topic: TopicId) -> str:
        """Return where hosts publish posts of the topic, and observers find all of them."""
        return self.prefixed(f"topic.v1.{_address(place_of(topic))}")

    def external_post(self, topic: TopicId, publisher: str) -> str:
        """Return where an outside service publishes posts of the topic."""
        return f"{self.topic(topic)}.ext.{_publisher(publisher)}"

    def dead(self, agent: AgentId) -> str:
        """Return where hosts publish dead letters of the agent."""
        return self.prefixed(f"dead.v1.{_address(agent)}")

    def ask(self, agent: AgentId, publisher: str) -> str:
        """Return where an outside service asks the agent and gets its answer."""
        return self.prefixed(f"ask.v1.{_address(agent)}.{_publisher(publisher)}")

    def api(self, tenant: str, publisher: str, verb: str) -> str:
        """Return where an outside service asks the hosts for something: the verbs of `broker.verbs`."""
        return self.prefixed(f"api.v1.{token(tenant)}.{_publisher(publisher)}.{token(verb)}")

    def live(self, agent: AgentId, run_id: RunId) -> str:
        """Return where pieces of models' answers in a run are told, to whoever listens."""
        return self.prefixed(f"run.v1.{_address(agent)}.{token(run_id)}")

    def live_end(self, agent: AgentId, run_id: RunId) -> str:
        """Return where the host that ended a run tells the hosts at which somebody waits for it."""
        return f"{self.live(agent, run_id)}.end"

    def host(self, owner: str) -> str:
        """Return where other hosts nudge this host incarnation."""
        return self.prefixed(f"host.v1.{token(owner)}")

    def stored(self, agent: AgentId) -> str:
        """Return the subject under which the mail stream stores what is for the agent."""
        return self.prefixed(_stored(agent, self.partitions))

    def stored_post(self, topic: TopicId) -> str:
        """Return the subject under which the mail stream stores what outsiders post there."""
        place = place_of(topic)
        partition = partition_hash(place) % self.partitions
        return self.prefixed(f"mail.{TOPICS}.{partition}.{_address(place)}")

    def is_post(self, subject: str) -> bool:
        """Return whether the mail stream stored a post of an outsider here."""
        return subject.startswith(self.prefixed(f"mail.{TOPICS}."))

    def filter_of(self, shard: ShardId) -> str:
        """Return the one filter of the shard's consumer.

        Raises:
            ContractError: It is not the name of a shard.
        """
        scope = scope_of(shard)
        if scope.agent is not None:
            return self.stored(scope.agent)
        type_ = scope.type if scope.type == TOPICS else token(scope.type)
        if scope.partition is None:
            return self.prefixed(f"mail.{type_}.>")
        return self.prefixed(f"mail.{type_}.{scope.partition}.>")

    def stream(self, name: StreamName) -> str:
        """Return the name of a stream; of EDGE its beginning (see `broker.streams`)."""
        return f"{self.namespace}_{name}" if self.namespace else name

    # --- taking apart -------------------------------------------------------------------------

    def parse_stored(self, subject: str, claimed: AgentId | None = None) -> AgentId:
        """Return the agent for which the mail stream stored this.

        Args:
            subject: What the server says where it is stored.
            claimed: Who the message says it is for; needed where the subject holds a hash.

        Raises:
            SubjectError: It is no stored subject of this deployment, does not tell the agent, or
                is not the one of the agent claimed.
        """
        agent = _parse_stored(self, subject) if claimed is None else claimed
        if self.stored(agent) != subject:
            raise SubjectError(subject, f"is not the mailbox of {agent}")
        return agent

    def parse_origin(self, subject: str, claimed: AgentId | None = None) -> Origin:
        """Return what the origin subject of a sourced message says.

        Args:
            subject: Where the outsider published it.
            claimed: Who the message says it is for; needed where the subject holds a hash.

        Raises:
            SubjectError: It is neither an outsider's message nor an outsider's signal, does not
                tell the agent, or does not address the agent claimed.
        """
        return _parse_origin(self, subject, claimed)

    def parse_stored_post(self, subject: str, claimed: AgentId | None = None) -> TopicId:
        """Return the topic to which an outsider posted what the mail stream stored here.

        Args:
            subject: What the server says where it is stored.
            claimed: Where the message says it belongs, with the names of the topic; needed where the
                subject holds a hash.

        Raises:
            SubjectError: It is no such subject of this deployment, does not tell the topic, or is
                not the one of the topic claimed.
        """
        tokens = _tokens(self, subject, f"mail.{TOPICS}")
        if len(tokens) != 4:  # noqa: PLR2004
            raise SubjectError(subject, f"is not mail.{TOPICS}.<p>.<tenant>.<type>.<source>")
        topic = _topic(subject, tokens[1:], claimed)
        if self.stored_post(topic) != subject:
            raise SubjectError(subject, f"is not where posts to {topic} are stored")
        return topic

    def parse_post_origin(self, subject: str, claimed: AgentId | None = None) -> PostOrigin:
        """Return what the origin subject of a sourced post says.

        Args:
            subject: Where the outsider published it.
            claimed: See `parse_stored_post`.

        Raises:
            SubjectError: It is no outsider's post, does not tell the topic, or is not for the topic
                claimed.
        """
        tokens = _tokens(self, subject, "topic.v1")
        if len(tokens) != 5 or tokens[3] != "ext":  # noqa: PLR2004
            raise SubjectError(subject, "is not topic.v1.<tenant>.<type>.<source>.ext.<publisher>")
        return PostOrigin(_topic(subject, tokens[:3], claimed), _publisher_of(tokens[4]))

    def parse_ask(self, subject: str, claimed: AgentId | None = None) -> Origin:
        """Return who asks whom.

        Args:
            subject: Of the request.
            claimed: Whom the request says it is for; needed where the subject holds a hash.

        Raises:
            SubjectError: It is no such subject, does not tell the agent, or addresses another one.
        """
        tokens = _tokens(self, subject, "ask.v1")
        if len(tokens) != 4:  # noqa: PLR2004
            raise SubjectError(subject, "is not ask.v1.<tenant>.<type>.<key>.<publisher>")
        return Origin(_addressed(subject, tokens[:3], claimed), _publisher_of(tokens[3]))

    def parse_api(self, subject: str) -> ApiOrigin:
        """Return who asks what of the hosts.

        Raises:
            SubjectError: It is no such subject.
        """
        tokens = _tokens(self, subject, "api.v1")
        if len(tokens) != 3:  # noqa: PLR2004
            raise SubjectError(subject, "is not api.v1.<tenant>.<publisher>.<verb>")
        try:
            tenant = check_name("tenant", untoken(tokens[0]))
        except InvalidNameError as exc:
            raise SubjectError(subject, str(exc)) from exc
        return ApiOrigin(tenant, _publisher_of(tokens[1]), untoken(tokens[2]))

    def mailbox_of(self, subject: str) -> AgentId:
        """Return who has this mailbox; for one behind a hash, a stand-in of the same shard.

        Raises:
            SubjectError: It is no stored subject of this deployment.
        """
        return _parse_stored(self, subject, hashes=True)


@lru_cache(maxsize=65_536)
def _address(agent: AgentId) -> str:
    return f"{token(agent.tenant)}.{token(agent.type)}.{token(agent.key)}"


@lru_cache(maxsize=65_536)
def _stored(agent: AgentId, partitions: int) -> str:
    partition = partition_hash(agent) % partitions
    return f"mail.{token(agent.type)}.{partition}.{token(agent.tenant)}.{token(agent.key)}"


@lru_cache(maxsize=65_536)
def _parse_stored(subjects: Subjects, subject: str, *, hashes: bool = False) -> AgentId:
    tokens = _tokens(subjects, subject, "mail")
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, "is not of the form mail.<type>.<p>.<tenant>.<key>")
    type_, _, tenant, key = tokens
    agent = _agent(subject, (tenant, type_, key), hashes=hashes)
    if subjects.stored(agent) != subject:
        raise SubjectError(subject, f"has another partition than {agent}")
    return agent


@lru_cache(maxsize=65_536)
def _parse_origin(subjects: Subjects, subject: str, claimed: AgentId | None) -> Origin:
    tokens = _tokens(subjects, subject, "agent.v1")
    if tokens[3:4] not in (["ext"], ["sig"]) or len(tokens) != (5 if tokens[3] == "ext" else 7):
        raise SubjectError(
            subject, "is neither ….ext.<publisher> nor ….sig.<publisher>.<run>.<name>"
        )
    agent, publisher = _addressed(subject, tokens[:3], claimed), _publisher_of(tokens[4])
    if tokens[3] == "ext":
        return Origin(agent, publisher)
    run_id = RunId(_name("run", _untoken_or_hash(tokens[5])))
    return Origin(
        agent, publisher, run_id, _name("signal", untoken(tokens[6]))
    )  # a hash is no name


def _addressed(subject: str, address: Sequence[str], claimed: AgentId | None) -> AgentId:
    """Return the agent of these tokens: what they spell, or the one claimed if it is spelt so."""
    agent = _agent(subject, address) if claimed is None else claimed
    if _address(agent) != ".".join(address):
        raise SubjectError(subject, f"does not address {agent}")
    return agent


def _topic(subject: str, address: Sequence[str], claimed: AgentId | None) -> TopicId:
    place = _addressed(subject, address, claimed)
    return TopicId(place.type, place.key, place.tenant)


def _tokens(subjects: Subjects, subject: str, head: str) -> list[str]:
    prefix = subjects.prefixed(f"{head}.")
    if not subject.startswith(prefix):
        raise SubjectError(subject, f"does not begin with {prefix}")
    return subject[len(prefix) :].split(".")


def _agent(subject: str, address: Sequence[str], *, hashes: bool = False) -> AgentId:
    read = _untoken_or_hash if hashes else untoken
    tenant, type_, key = map(read, address)
    try:
        return AgentId(type_, key, tenant)
    except InvalidNameError as exc:
        raise SubjectError(subject, str(exc)) from exc


def _untoken_or_hash(text: str) -> str:
    return text if _HASHED.fullmatch(text) else untoken(text)


def _publisher_of(text: str) -> str:
    """Return the publisher of a token; a hashed one is told from others as it is."""
    return _name("publisher", _untoken_or_hash(text))


def _publisher(name: str) -> str:
    return token(_name("publisher", name))


def _name(what: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise SubjectError(name, f"the name of a {what} is {KEY_RULE}")
    return name
