"""Settings of the store: the connection, and its time limits."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from actors.errors import InvalidNameError
from actors.kernel.runtime.ids import HostIncarnation

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Everything a `PostgresStore` and its heartbeat need to know.

    Attributes:
        url: ``postgresql://user:password@host:port/database``.
        schema: The schema of the tables; 1 to 40 of ``a-z 0-9 _``.
        owner: This incarnation of this host.
        lease_s: Seconds of ownership after a heartbeat.
        heartbeat_s: Seconds between heartbeats.
        blocked_s: Seconds for which a blocked event loop keeps the shard of the agent that blocks it.
        outage_s: Seconds for which calls wait for a server that went away, then PersistenceError.
        answer_s: Time limit of a statement in seconds; then its connection counts as lost.
        start_wait_s: Seconds for which opening waits for a server that is not there yet; None: for ever.
        group_limit: Most calls that one round trip carries.
        readers: Connections for reads and rare writes.
        capacity: The host's share of the shards, relative to other hosts, in any unit they share.
        brokered: Whether a broker takes what agents send to agents of other hosts.
        local_delivery: Whether, with a broker, messages between agents of this host go without it.
    """

    url: str
    owner: HostIncarnation
    schema: str = "callboard"
    lease_s: float = 10.0
    heartbeat_s: float = 3.0
    blocked_s: float = 60.0
    outage_s: float = 60.0
    answer_s: float = 30.0
    start_wait_s: float | None = None
    group_limit: int = 250
    readers: int = 2
    capacity: int = 1000
    brokered: bool = False
    local_delivery: bool = True

    def __post_init__(self) -> None:
        if _SCHEMA.fullmatch(self.schema) is None:
            raise InvalidNameError("schema", self.schema, "1 to 40 of a-z, 0-9 and _")

    @property
    def lease(self) -> timedelta:
        """`lease_s` as the driver takes it."""
        return timedelta(seconds=self.lease_s)

    @property
    def own_channel(self) -> str:
        """The channel on which others NOTIFY this host; the SQL function `nudge_channel` says the same."""
        digest = hashlib.md5(self.owner.encode(), usedforsecurity=False).hexdigest()
        return f"{self.schema}:{digest[:16]}"

    @property
    def common_channel(self) -> str:
        """The channel on which every host listens: shards were made or given up."""
        return f"{self.schema}:all"

    @property
    def sessions_channel(self) -> str:
        """The channel of hosts that follow sessions: new facts of those that have readers."""
        return f"{self.schema}:sessions"

    @property
    def followed_channel(self) -> str:
        """The channel on which every host hears that another process follows a log."""
        return f"{self.schema}:followed"

    @property
    def growth_channel(self) -> str:
        """Channel of notifications that logs have grown, for the processes that follow them."""
        return f"{self.schema}:growth"
