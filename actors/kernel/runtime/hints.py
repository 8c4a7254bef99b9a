"""Hints: what hosts tell each other and themselves. One may be lost, late or doubled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.kernel.runtime.ids import AgentId, RunId, ShardId


@dataclass(frozen=True, slots=True)
class Nudge:
    """A hint that something changed for an agent; facts are read from the store.

    `kind` run: a new queued run. mail: pending mail. signal: a buffered signal or an answer for
    `run_id`. cancel: `run_id` was asked to stop. fanout: posts for followers in `shard`.
    schedule: a schedule of the agent was written. shards: look for shards to claim.
    limits: a limit was changed. places: places of a limit are free, or wanted.
    life: another server, or another life of it, answers; it may be behind what was read before. Called
    before anything is asked of it. held: this host has other shards than before; never leaves it.
    """

    kind: Literal[
        "run",
        "mail",
        "signal",
        "cancel",
        "fanout",
        "schedule",
        "shards",
        "limits",
        "places",
        "life",
        "held",
    ]
    agent_id: AgentId | None = None
    run_id: RunId | None = None
    shard: ShardId | None = None
