"""A host as a NATS micro service: what ``nats micro ls``, ``info`` and ``stats`` show of it.

The library's own `Service` runs one request after the other and reads the clock in a way that newer
Pythons warn of; its forms of the answers are used here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nats.micro.service import (
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    ServiceVerb,
    control_subject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

NAME: Final = "callboard"
QUEUE: Final = "callboard"
"""Queue group of all hosts: of each request one host takes care."""
_DESCRIPTION: Final = "Durable actors: asks agents, and answers for their runs."
_MAX_METADATA: Final = 1024


@dataclass(slots=True)
class Endpoint:
    """One of the service's subjects, and what came in there."""

    name: str
    subject: str
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    last_error: str = ""

    def done(self, seconds: float, error: str | None) -> None:
        """Count a request that was answered."""
        self.seconds += seconds
        if error is not None:
            self.errors += 1
            self.last_error = error

    def info(self) -> EndpointInfo:
        """Return what it is."""
        return EndpointInfo(name=self.name, subject=self.subject, queue_group=QUEUE)

    def stats(self) -> EndpointStats:
        """Return how much it was used."""
        total = int(self.seconds * 1e9)
        return EndpointStats(
            name=self.name, subject=self.subject, queue_group=QUEUE, num_requests=self.requests,
            num_errors=self.errors, last_error=self.last_error, processing_time=total,
            average_processing_time=total // max(1, self.requests),
        )  # fmt: skip


class MicroService:
    """Answers ``$SRV.PING``, ``$SRV.INFO`` and ``$SRV.STATS``.

    Args:
        id_: The host's incarnation.
        version: Of this software, a semantic version.
        started: When the host started.
        endpoints: Its subjects.
        metadata: Facts that may change, asked for with each answer.
    """

    def __init__(
        self,
        id_: str,
        *,
        version: str,
        started: datetime,
        endpoints: Sequence[Endpoint],
        metadata: Callable[[], Mapping[str, str]],
    ) -> None:
        self._id, self._version, self._started = id_, version, started
        self._endpoints, self._metadata = endpoints, metadata

    def answers(self) -> dict[str, Callable[[], bytes]]:
        """Return what answers requests, by subject."""
        verbs = (
            (ServiceVerb.PING, self._ping), (ServiceVerb.INFO, self._info),
            (ServiceVerb.STATS, self._stats),
        )  # fmt: skip
        places = ((None, None), (NAME, None), (NAME, self._id))
        return {control_subject(verb, *place): say for verb, say in verbs for place in places}

    def _who(self) -> dict[str, Any]:
        found = {name: text[:_MAX_METADATA] for name, text in self._metadata().items()}
        return {"id": self._id, "name": NAME, "version": self._version, "metadata": found}

    def _ping(self) -> bytes:
        return json.dumps(ServicePing(**self._who()).to_dict()).encode()

    def _info(self) -> bytes:
        endpoints = [one.info() for one in self._endpoints]
        found = ServiceInfo(**self._who(), description=_DESCRIPTION, endpoints=endpoints)
        return json.dumps(found.to_dict()).encode()

    def _stats(self) -> bytes:
        endpoints = [one.stats() for one in self._endpoints]
        found = ServiceStats(**self._who(), started=self._started, endpoints=endpoints)
        return json.dumps(found.to_dict()).encode()
