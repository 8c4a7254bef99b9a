"""Subjects and stream names as values: the only module that builds them; `parsing` parses them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from actors.errors import InvalidNameError
from actors.kernel.runtime.ids import (
    KEY_RULE,
    PARTITIONS,
    TOPICS,
    AgentId,
    RunId,
    ShardId,
    TopicId,
    partition_hash,
    place_of,
    scope_of,
    token,
)
from actors.kernel.stores.outside import Sight
from broker.errors import SubjectError
from broker.wire.headers import TARGET

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
        return self.prefixed(_stored(agent, self.partitions))

    def stored_post(self, topic: TopicId) -> str:
        """Return the subject under which the stream MAIL stores posts of external clients to the topic."""
        place = place_of(topic)
        partition = partition_hash(place) % self.partitions
        return self.prefixed(f"mail.{TOPICS}.{partition}.{address_of(place)}")

    def is_post(self, subject: str) -> bool:
        """Return True if the stream MAIL stored a post of an external client here."""
        return subject.startswith(self.prefixed(f"mail.{TOPICS}."))

    def tenant_token_of(self, subject: bytes) -> bytes:
        """Return the token of the tenant for whom the stream MAIL stored this; b"" where there is none."""
        at = 4 if self.namespace else 3
        tokens = subject.split(b".", at + 1)
        return tokens[at] if len(tokens) > at else b""

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
        """Return the name of a stream; of EDGE its beginning (see `broker.mail.streams`)."""
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


@lru_cache(maxsize=1024)
def address_of(agent: AgentId) -> str:
    """Return the tokens ``<tenant>.<type>.<key>`` of the agent."""
    return f"{token(agent.tenant)}.{token(agent.type)}.{token(agent.key)}"


@lru_cache(maxsize=1024)
def _stored(agent: AgentId, partitions: int) -> str:
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
