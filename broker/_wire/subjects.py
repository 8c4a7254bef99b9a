"""Subjects and stream names: the only module that builds and parses them.

A parsed subject says receiver and publisher, as far as it names them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from actors._kernel.runtime.ids import (
    KEY_RULE,
    PARTITIONS,
    TOPICS,
    AgentId,
    RunId,
    ShardId,
    TopicId,
    check_name,
    partition_hash,
    place_of,
    scope_of,
    token,
)
from actors._kernel.stores.outside import Sight
from actors.errors import InvalidNameError
from broker._errors import SubjectError
from broker._wire.headers import TARGET

_TAILS: Final[dict[Sight, str]] = {"own": "", "tenant": ".tenant"}
"""Suffix of the subject of a request; the server's permissions say which client may publish it."""

StreamName: TypeAlias = Literal["MAIL", "EDGE", "TOPIC", "DEAD"]

NAMESPACE_RULE: Final = "up to 32 of a-z, 0-9, '_' and '-'"
_NAMESPACE: Final = re.compile(r"[a-z0-9_-]{0,32}")
HASHED: Final = re.compile(r"h-[0-9a-f]{32}")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")
_ESCAPE: Final = re.compile(r"(?:%[0-9A-F]{2})+")


def untoken(text: str) -> str:
    """Return the name of which `token` made this.

    Raises:
        SubjectError: `token` does not make such a token, or made it by hashing a long name.
    """
    if _ESCAPED.fullmatch(text) is None:
        raise SubjectError(text, "is not a token of letters, digits, '_', '-' and %XX")
    if HASHED.fullmatch(text):
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


@lru_cache(maxsize=1024)
def has_hash(agent: AgentId) -> bool:
    """Return whether the agent's subjects hold a hash, so that header Actor-Target must name it."""
    return any(HASHED.fullmatch(part) for part in address_of(agent).split("."))


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one deployment.

    Attributes:
        namespace: Goes before every subject (``<ns>.``) and stream name (``<ns>_``).
        partitions: Number of partitions of each type; fixed for a deployment.
    """

    namespace: str = ""
    partitions: int = PARTITIONS

    def __post_init__(self) -> None:
        if _NAMESPACE.fullmatch(self.namespace) is None:
            raise InvalidNameError("namespace", self.namespace, NAMESPACE_RULE)

    def prefixed(self, subject: str) -> str:
        """Return a subject or pattern of the grammar as it is in this namespace."""
        return f"{self.namespace}.{subject}" if self.namespace else subject

    def inbox(self, agent: AgentId) -> str:
        """Return the subject to which hosts publish messages for the agent."""
        return self.prefixed(f"agent.v1.{address_of(agent)}.in")

    def external(self, agent: AgentId, publisher: str) -> str:
        """Return where an outside service publishes messages for the agent."""
        return self.prefixed(f"agent.v1.{address_of(agent)}.ext.{_publisher(publisher)}")

    def signal(self, agent: AgentId, publisher: str, run_id: RunId, name: str) -> str:
        """Return where an outside service publishes a signal for a run of the agent."""
        head = f"agent.v1.{address_of(agent)}.sig.{_publisher(publisher)}"
        return self.prefixed(f"{head}.{token(run_id)}.{token(checked_name('signal', name))}")

    def topic(self, topic: TopicId) -> str:
        """Return where hosts publish posts of the topic, and observers find all of them."""
        return self.prefixed(f"topic.v1.{address_of(place_of(topic))}")

    def external_post(self, topic: TopicId, publisher: str) -> str:
        """Return where an outside service publishes posts of the topic."""
        return f"{self.topic(topic)}.ext.{_publisher(publisher)}"

    def dead(self, agent: AgentId) -> str:
        """Return the subject to which hosts publish dead letters of the agent."""
        return self.prefixed(f"dead.v1.{address_of(agent)}")

    def ask(self, agent: AgentId, publisher: str, sees: Sight = "own") -> str:
        """Return where an outside service asks the agent and gets its answer."""
        return self.prefixed(f"ask.v1.{address_of(agent)}.{_publisher(publisher)}{_TAILS[sees]}")

    def api(self, tenant: str, publisher: str, verb: str, sees: Sight = "own") -> str:
        """Return where an outside service asks the hosts for something: the verbs of `gateway.handlers`."""
        head = f"api.v1.{token(tenant)}.{_publisher(publisher)}"
        return self.prefixed(f"{head}.{token(verb)}{_TAILS[sees]}")

    def live(self, agent: AgentId, run_id: RunId) -> str:
        """Return the subject to which pieces of models' answers in a run are published."""
        return self.prefixed(f"run.v1.{address_of(agent)}.{token(run_id)}")

    def live_end(self, agent: AgentId, run_id: RunId) -> str:
        """Return the subject on which the host that ended a run notifies hosts whose callers wait for it."""
        return f"{self.live(agent, run_id)}.end"

    def host(self, owner: str) -> str:
        """Return where other hosts nudge this host incarnation."""
        return self.prefixed(f"host.v1.{token(owner)}")

    def stored(self, agent: AgentId) -> str:
        """Return the subject under which the stream MAIL stores messages for the agent."""
        return self.prefixed(_stored_subject(agent, self.partitions))

    def stored_post(self, topic: TopicId) -> str:
        """Return the subject under which the stream MAIL stores posts of external clients to the topic."""
        topic_agent = place_of(topic)
        partition = partition_hash(topic_agent) % self.partitions
        return self.prefixed(f"mail.{TOPICS}.{partition}.{address_of(topic_agent)}")

    def is_post(self, subject: str) -> bool:
        """Return True if the stream MAIL stored a post of an external client here."""
        return subject.startswith(self.prefixed(f"mail.{TOPICS}."))

    def tenant_token_of(self, subject: bytes) -> bytes:
        """Return the token of the tenant for whom the stream MAIL stored this; b"" where there is none."""
        index = 4 if self.namespace else 3
        tokens = subject.split(b".", index + 1)
        return tokens[index] if len(tokens) > index else b""

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
        """Return the name of a stream; of EDGE its beginning (see `broker._mail.streams`)."""
        return f"{self.namespace}_{name}" if self.namespace else name


def hint_subject(subjects: Subjects, about: Literal["open", "follow", "log"], run: str = "") -> str:
    """Return the subject on which hosts announce that runs have readers. No host's name begins with `~`.

    Args:
        subjects: The deployment's subjects.
        about: ``open``: questions for answers that are under way. ``follow``: names of runs whose log a client
            reads. ``log``: hints that the log of `run` has grown.
        run: The run.
    """
    return subjects.prefixed(f"host.v1.~{about}{token(run)}")


# Every message of an agent needs its address, whose parts are escaped or hashed.
@lru_cache(maxsize=1024)
def address_of(agent: AgentId) -> str:
    """Return the tokens ``<tenant>.<type>.<key>`` of the agent."""
    return f"{token(agent.tenant)}.{token(agent.type)}.{token(agent.key)}"


@lru_cache(maxsize=1024)
def _stored_subject(agent: AgentId, partitions: int) -> str:
    partition = partition_hash(agent) % partitions
    return f"mail.{token(agent.type)}.{partition}.{token(agent.tenant)}.{token(agent.key)}"


def _publisher(name: str) -> str:
    return token(checked_name("publisher", name))


def checked_name(what: str, name: str) -> str:
    """Return a name that can stand in a subject.

    Raises:
        SubjectError: It cannot.
    """
    if _NAME.fullmatch(name) is None:
        raise SubjectError(name, f"the name of a {what} is {KEY_RULE}")
    return name


class AgentOrigin(NamedTuple):
    """The publisher and the target of a sourced message, parsed from the origin subject.

    Attributes:
        agent: The addressed agent.
        publisher: The outside service; the broker's permissions vouch for it.
        run_id: The run a signal is for; None for a message.
        name: The signal's name; None for a message.
        sees: For a question: what its publisher sees beside what it started.
    """

    agent: AgentId
    publisher: str
    run_id: RunId | None = None
    name: str | None = None
    sees: Sight = "own"


class ApiOrigin(NamedTuple):
    """The client and the verb of a request, parsed from its subject."""

    tenant: str
    publisher: str
    verb: str
    sees: Sight = "own"


class PostOrigin(NamedTuple):
    """The publisher and the topic of a sourced post, parsed from the origin subject."""

    topic: TopicId
    publisher: str


def parse_stored(subjects: Subjects, subject: str, claimed_agent: AgentId | None = None) -> AgentId:
    """Return the agent for which the stream MAIL stored this.

    Args:
        subjects: The deployment's subjects.
        subject: What the server says where it is stored.
        claimed_agent: The receiver that the message names; needed if the subject has a hash.

    Raises:
        SubjectError: It is no stored subject of this deployment, does not name the agent, or
            is not the one of the agent claimed.
    """
    agent = _parse_stored(subjects, subject) if claimed_agent is None else claimed_agent
    if subjects.stored(agent) != subject:
        raise SubjectError(subject, f"is not the mailbox of {agent}")
    return agent


@lru_cache(maxsize=1024)
def parse_origin(
    subjects: Subjects, subject: str, claimed_agent: AgentId | None = None
) -> AgentOrigin:
    """Return what the origin subject of a sourced message says.

    Args:
        subjects: The deployment's subjects.
        subject: The subject to which the external client published it.
        claimed_agent: The receiver that the message names; needed if the subject has a hash.

    Raises:
        SubjectError: It is neither a message nor a signal of an external client, does not
            name the agent, or does not address the agent claimed.
    """
    tokens = _tokens(subjects, subject, "agent.v1")
    if tokens[3:4] not in (["ext"], ["sig"]) or len(tokens) != (5 if tokens[3] == "ext" else 7):
        raise SubjectError(
            subject, "is neither ….ext.<publisher> nor ….sig.<publisher>.<run>.<name>"
        )
    agent, publisher = (
        _addressed_agent(subject, tokens[:3], claimed_agent),
        _publisher_of(tokens[4]),
    )
    if tokens[3] == "ext":
        return AgentOrigin(agent, publisher)
    run_id = RunId(checked_name("run", _untoken_or_hash(tokens[5])))
    return AgentOrigin(
        agent, publisher, run_id, checked_name("signal", untoken(tokens[6]))
    )  # a hash is no name


def parse_stored_post(
    subjects: Subjects, subject: str, claimed_agent: AgentId | None = None
) -> TopicId:
    """Return the topic to which an external client posted what the stream MAIL stored here.

    Args:
        subjects: The deployment's subjects.
        subject: What the server says where it is stored.
        claimed_agent: Where the message says it belongs, with the names of the topic; needed where the
            subject holds a hash.

    Raises:
        SubjectError: It is no such subject of this deployment, does not name the topic, or is
            not the one of the topic claimed.
    """
    tokens = _tokens(subjects, subject, f"mail.{TOPICS}")
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, f"is not mail.{TOPICS}.<p>.<tenant>.<type>.<source>")
    topic = _topic(subject, tokens[1:], claimed_agent)
    if subjects.stored_post(topic) != subject:
        raise SubjectError(subject, f"is not where posts to {topic} are stored")
    return topic


def parse_post_origin(
    subjects: Subjects, subject: str, claimed_agent: AgentId | None = None
) -> PostOrigin:
    """Return what the origin subject of a sourced post says.

    Args:
        subjects: The deployment's subjects.
        subject: The subject to which the external client published it.
        claimed_agent: The names of the topic as the message has them; needed if the subject has a hash.

    Raises:
        SubjectError: It is no post of an external client, does not name the topic, or is not for the topic
            claimed.
    """
    tokens = _tokens(subjects, subject, "topic.v1")
    if len(tokens) != 5 or tokens[3] != "ext":  # noqa: PLR2004
        raise SubjectError(subject, "is not topic.v1.<tenant>.<type>.<source>.ext.<publisher>")
    return PostOrigin(_topic(subject, tokens[:3], claimed_agent), _publisher_of(tokens[4]))


def parse_ask(
    subjects: Subjects, subject: str, claimed_agent: AgentId | None = None
) -> AgentOrigin:
    """Return the client and the agent of a request subject.

    Args:
        subjects: The deployment's subjects.
        subject: The request's subject.
        claimed_agent: Whom the request says it is for; needed where the subject holds a hash.

    Raises:
        SubjectError: It is no such subject, does not name the agent, or addresses another one.
    """
    tokens, sees = _sight(_tokens(subjects, subject, "ask.v1"), 4)
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, "is not ask.v1.<tenant>.<type>.<key>.<publisher>[.tenant]")
    agent, publisher = (
        _addressed_agent(subject, tokens[:3], claimed_agent),
        _publisher_of(tokens[3]),
    )
    return AgentOrigin(agent, publisher, sees=sees)


def parse_api(subjects: Subjects, subject: str) -> ApiOrigin:
    """Return the client and the verb of a request to the hosts.

    Raises:
        SubjectError: It is no such subject.
    """
    tokens, sees = _sight(_tokens(subjects, subject, "api.v1"), 3)
    if len(tokens) != 3:  # noqa: PLR2004
        raise SubjectError(subject, "is not api.v1.<tenant>.<publisher>.<verb>[.tenant]")
    try:
        tenant = check_name("tenant", untoken(tokens[0]))
    except InvalidNameError as exc:
        raise SubjectError(subject, str(exc)) from exc
    return ApiOrigin(tenant, _publisher_of(tokens[1]), untoken(tokens[2]), sees)


def mailbox_of(subjects: Subjects, subject: str) -> AgentId:
    """Return the agent of this mailbox; for a hashed key, a stand-in of the same shard.

    Raises:
        SubjectError: It is no stored subject of this deployment.
    """
    return _parse_stored(subjects, subject, hashes=True)


@lru_cache(maxsize=1024)
def _parse_stored(subjects: Subjects, subject: str, *, hashes: bool = False) -> AgentId:
    tokens = _tokens(subjects, subject, "mail")
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, "is not of the form mail.<type>.<p>.<tenant>.<key>")
    type_, _, tenant, key = tokens
    agent = _agent(subject, (tenant, type_, key), hashes=hashes)
    if subjects.stored(agent) != subject:
        raise SubjectError(subject, f"has another partition than {agent}")
    return agent


def _addressed_agent(
    subject: str, address: Sequence[str], claimed_agent: AgentId | None
) -> AgentId:
    """Return the agent of these tokens. A token may be a hash, so `claimed_agent` is compared with them."""
    agent = _agent(subject, address) if claimed_agent is None else claimed_agent
    if address_of(agent) != ".".join(address):
        raise SubjectError(subject, f"does not address {agent}")
    return agent


def _topic(subject: str, address: Sequence[str], claimed_agent: AgentId | None) -> TopicId:
    topic_agent = _addressed_agent(subject, address, claimed_agent)
    return TopicId(topic_agent.type, topic_agent.key, topic_agent.tenant)


def _tokens(subjects: Subjects, subject: str, head: str) -> list[str]:
    prefix = subjects.prefixed(f"{head}.")
    if not subject.startswith(prefix):
        raise SubjectError(subject, f"does not begin with {prefix}")
    return subject[len(prefix) :].split(".")


def _sight(tokens: list[str], count: int) -> tuple[list[str], Sight]:
    """Return the tokens of a request without the one behind them, which says what its publisher sees."""
    if len(tokens) == count + 1 and tokens[-1] == "tenant":
        return tokens[:-1], "tenant"
    return tokens, "own"


def _agent(subject: str, address: Sequence[str], *, hashes: bool = False) -> AgentId:
    parse_token = _untoken_or_hash if hashes else untoken
    tenant, type_, key = map(parse_token, address)
    try:
        return AgentId(type_, key, tenant)
    except InvalidNameError as exc:
        raise SubjectError(subject, str(exc)) from exc


def _untoken_or_hash(text: str) -> str:
    return text if HASHED.fullmatch(text) else untoken(text)


def _publisher_of(text: str) -> str:
    """Return the publisher of a token; a hashed one is compared as it is."""
    return checked_name("publisher", _untoken_or_hash(text))
