"""Identity: agents, topics, runs, shards, and ids derived from their cause.

Ids of derived things are hashes of what caused them, never fresh randoms, so creating any of them twice is a
no-op. A shard is the agents that have one owner, one durable consumer and one cursor together. The SQL
function `shard_of` builds the same names.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NewType

from typing_extensions import override

from actors.errors import ContractError, InvalidNameError

RunId = NewType("RunId", str)
"""Opaque id of one run: 32 hexadecimal digits."""

ShardId = NewType("ShardId", str)
"""A set of agents that has one owner at a time."""

HostIncarnation = NewType("HostIncarnation", str)
"""A host process from its start to its end; a restarted host is another incarnation."""

DEFAULT_TENANT: Final = "default"
NAME_RULE: Final = "a letter or digit, then up to 63 letters, digits, '_', '-' or '.'"
KEY_RULE: Final = "1 to 256 printable characters"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEY: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_TOKEN: Final = re.compile(rb"[^A-Za-z0-9_-]")


# An id is made of each row that is read: of any number of keys, but of a few types and tenants.
@lru_cache(maxsize=1024)
def check_name(what: str, value: str) -> str:
    """Return `value` if it is a valid type, tenant, topic or client name.

    Raises:
        InvalidNameError: It is not.
    """
    if _NAME.fullmatch(value) is None:
        raise InvalidNameError(what, value, NAME_RULE)
    return value


@dataclass(frozen=True, slots=True, order=True)
class AgentId:
    """The address of one agent, written ``type/key`` (``tenant:type/key`` outside the default tenant)."""

    type: str
    key: str
    tenant: str = DEFAULT_TENANT

    def __post_init__(self) -> None:
        check_name("agent type", self.type)
        check_name("tenant", self.tenant)
        if _KEY.fullmatch(self.key) is None:
            raise InvalidNameError("agent key", self.key, KEY_RULE)

    @override
    def __str__(self) -> str:
        text = f"{self.type}/{self.key}"
        return text if self.tenant == DEFAULT_TENANT else f"{self.tenant}:{text}"

    @classmethod
    def parse(cls, text: str) -> AgentId:
        """Return the id that `str()` of it gave.

        Raises:
            InvalidNameError: `text` is not ``type/key`` or ``tenant:type/key``.
        """
        return _parse_agent(text)

    @classmethod
    def generate(cls, type_: str, *, tenant: str = DEFAULT_TENANT) -> AgentId:
        """Return an id of this type with a fresh random key. Not for use inside a run."""
        return cls(type_, uuid.uuid4().hex, tenant)


# Cached: rows and messages name the same agents again and again, and each part is checked by a pattern.
@lru_cache(maxsize=1024)
def _parse_agent(text: str) -> AgentId:
    head, slash, key = text.partition("/")
    if not slash:
        raise InvalidNameError("agent id", text, "written type/key or tenant:type/key")
    tenant, colon, type_ = head.rpartition(":")
    return AgentId(type_, key, tenant if colon else DEFAULT_TENANT)


@dataclass(frozen=True, slots=True, order=True)
class TopicId:
    """The id of a topic that agents follow, written ``type/source``."""

    type: str
    source: str = "default"
    tenant: str = DEFAULT_TENANT

    def __post_init__(self) -> None:
        check_name("topic type", self.type)
        check_name("tenant", self.tenant)
        if _KEY.fullmatch(self.source) is None:
            raise InvalidNameError("topic source", self.source, KEY_RULE)

    @override
    def __str__(self) -> str:
        text = f"{self.type}/{self.source}"
        return text if self.tenant == DEFAULT_TENANT else f"{self.tenant}:{text}"


def derive_id(*parts: str | int) -> str:
    """Return 32 hexadecimal digits that depend on every part and on their borders."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = str(part).encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return digest.hexdigest()


def run_id_of_submit(agent: AgentId, sender: str, message_id: str) -> RunId:
    """Return the id of the run that a submitted message starts."""
    return RunId(derive_id("submit", agent.tenant, str(agent), sender, message_id))


def run_id_of_mail(agent: AgentId, sender: str, first_message_id: str) -> RunId:
    """Return the id of the run that waiting messages start; named by the first one."""
    return RunId(derive_id("mail", agent.tenant, str(agent), sender, first_message_id))


def run_id_of_child(parent_id: RunId, position: str) -> RunId:
    """Return the id of the run spawned at `position` of `parent_id`."""
    return RunId(derive_id("child", parent_id, position))


def run_id_of_fork(run_id: RunId, seq: int, copy: int) -> RunId:
    """Return the id of the copy-th fork of `run_id` after entry `seq`."""
    return RunId(derive_id("fork", run_id, seq, copy))


def message_id_of_run(run_id: RunId, position: str, n: int = 0) -> str:
    """Return the id of the n-th message that a run sends at `position`."""
    return derive_id("message", run_id, position, n)


def message_id_of_post(sender: str, message_id: str) -> str:
    """Return the id under which followers get what `sender` published.

    SHA-256, which SQL has, too: `post_id` computes the same.
    """
    return hashlib.sha256(f"post\n{sender}\n{message_id}".encode()).hexdigest()[:32]


def token(text: str) -> str:
    """Return `text` as one subject token: other bytes than ``[A-Za-z0-9_-]`` are ``%XX``.

    Over 128 bytes the token is a hash of the text.
    """
    raw = text.encode()
    escaped_text = _TOKEN.sub(lambda m: b"%%%02X" % m.group()[0], raw).decode()
    return escaped_text if len(escaped_text) <= 128 else "h-" + derive_id("token", text)  # noqa: PLR2004


# Cached: each commit and each subject needs it, and the hash goes byte by byte in Python.
@lru_cache(maxsize=1024)
def partition_hash(agent: AgentId) -> int:
    """Return the 32-bit FNV-1a hash that decides an agent's partition (mod the number of partitions).

    Computed over the subject tokens of tenant, type and key, as nats-server's `partition()` does.
    """
    return _fnv1a(token(agent.key), _type_hash(agent.tenant, agent.type))


@lru_cache(maxsize=1024)
def _type_hash(tenant: str, type_: str) -> int:
    return _fnv1a(token(tenant) + token(type_), 2166136261)


def _fnv1a(text: str, value: int) -> int:
    for byte in text.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


PARTITIONS: Final = 16
"""Partitions of a type, fixed for a deployment."""

TOPICS: Final = "~topic"
"""The type of shards that hold topics: what external clients publish there is read by their owners. No agent's
type can have this name."""


@dataclass(frozen=True, slots=True)
class ShardScope:
    """The agents that a shard holds: one partition of a type, one agent, or all of an undeclared type."""

    type: str
    partition: int | None = None
    agent: AgentId | None = None


def partition_shard(type_: str, partition: int) -> ShardId:
    """Return the shard of one partition of a type that is registered whole."""
    return ShardId(f"p:{type_}:{partition}")


def instance_shard(agent: AgentId) -> ShardId:
    """Return the shard of an agent that is registered by itself."""
    return ShardId(f"i:{agent.tenant}:{agent.type}/{agent.key}")


def topic_shard(topic: TopicId, partitions: int = PARTITIONS) -> ShardId:
    """Return the shard that reads what external clients publish to the topic."""
    return partition_shard(TOPICS, partition_hash(place_of(topic)) % partitions)


def place_of(topic: TopicId) -> AgentId:
    """Return the agent of the topic's names: what is computed of them is the same for both."""
    return AgentId(topic.type, topic.source, topic.tenant)


def is_of_topics(shard: ShardId) -> bool:
    """Return True if the shard holds topics, not agents."""
    return shard.startswith(f"p:{TOPICS}:")


def letters_of(topic: TopicId) -> AgentId:
    """Return the owner of dead letters of posts to the topic that are no messages: ``topic/type/source``."""
    return AgentId("topic", f"{topic.type}/{topic.source}"[:256], topic.tenant)


def undeclared_shard(type_: str) -> ShardId:
    """Return the shard of all agents of a type that is not registered yet."""
    return ShardId(f"u:{type_}")


def scope_of(shard: ShardId) -> ShardScope:
    """Return which agents the shard holds.

    Raises:
        ContractError: No function of this module made it.
    """
    mode, _, rest = shard.partition(":")
    if mode == "p":
        type_, _, partition = rest.rpartition(":")
        return ShardScope(type_, partition=int(partition))
    if mode == "i":
        agent = AgentId.parse(rest)
        return ShardScope(agent.type, agent=agent)
    if mode == "u":
        return ShardScope(rest)
    msg = f"{shard!r} is not the name of a shard"
    raise ContractError(msg)
