"""Code that does not let the event loop go: who it is, and what remains of that."""

from __future__ import annotations

from dataclasses import dataclass

from actors.kernel.runtime.ids import AgentId, RunId, ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """The code that blocks this host's event loop now.

    Attributes:
        place: Function, file and line.
        agent_id: The agent whose code it is; None: not known.
        run_id: The run that executes it.
        shard: The agent's.
        in_doubt: Shards in which an effect is under way that would be in doubt elsewhere.
    """

    place: str
    agent_id: AgentId | None = None
    run_id: RunId | None = None
    shard: ShardId | None = None
    in_doubt: frozenset[ShardId] = frozenset()

    @property
    def who(self) -> str:
        """The agent and its run, for people."""
        if self.agent_id is None:
            return "code of no agent"
        return f"agent {self.agent_id}, run {self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Hosts gave up the shard of a run because its code blocked them for too long.

    Attributes:
        run_id: The run; it may have no row, if that was before its first commit.
        seqs: The last seq of its log each time, -1 when it was empty.
        place: Function, file and line of the last time.
    """

    run_id: RunId
    seqs: tuple[int, ...]
    place: str
