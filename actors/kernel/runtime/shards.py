"""Shards: which agents have one owner, one durable consumer and one cursor together.

The SQL function `shard_of` builds the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId, ShardId, TopicId, partition_hash

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
    """Return whether the shard holds topics, not agents."""
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
