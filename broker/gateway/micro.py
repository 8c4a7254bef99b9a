"""A host as a NATS micro service: what ``nats micro ls``, ``info`` and ``stats`` show of it.

The library's own `Service` runs one request after the other and reads the clock in a way that newer
Pythons warn of; its forms of the answers are used here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from nats.micro import service

from actors.kernel.runtime.ids import token

NAME: Final = "callboard"
QUEUE: Final = "callboard"
"""Queue group of all hosts: of each request one host takes care."""
_DESCRIPTION: Final = "Durable actors: asks agents, and answers for their runs."
_MAX_METADATA: Final = 1024


@dataclass(slots=True)
class Endpoint:
    """A subject of the service, and its counters."""

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

    def info(self) -> service.EndpointInfo:
        """Return the name, subject and queue group for `$SRV.INFO`."""
        return service.EndpointInfo(name=self.name, subject=self.subject, queue_group=QUEUE)

    def stats(self) -> service.EndpointStats:
        """Return the counts of requests and errors, and the processing time, for `$SRV.STATS`."""
        total = int(self.seconds * 1e9)
        return service.EndpointStats(
            name=self.name,
            subject=self.subject,
            queue_group=QUEUE,
            num_requests=self.requests,
            num_errors=self.errors,
            last_error=self.last_error,
            processing_time=total,
            average_processing_time=total // max(1, self.requests),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The gateway's facts about its host.

    Attributes:
        owner: Its incarnation.
        version: Version of this software.
        started: When it was started.
        serves: Returns the types, and single agents as text, that it serves now.
    """

    owner: str
    version: str
    started: datetime
    serves: Callable[[], Sequence[str]]


class MicroService:
    """Answers ``$SRV.PING``, ``$SRV.INFO`` and ``$SRV.STATS``.

    Args:
        host: What is said of it.
        namespace: The namespace of the deployment.
        endpoints: Its subjects.
    """

    def __init__(self, host: HostFacts, namespace: str, endpoints: Iterable[Endpoint]) -> None:
        self._host, self._namespace, self._endpoints = host, namespace, tuple(endpoints)
        self._id = token(host.owner)

    def answers(self) -> dict[str, Callable[[], bytes]]:
        """Return what answers requests, by subject."""
        verbs = (
            (service.ServiceVerb.PING, self._ping),
            (service.ServiceVerb.INFO, self._info),
            (service.ServiceVerb.STATS, self._stats),
        )
        places = ((None, None), (NAME, None), (NAME, self._id))
        return {
            service.control_subject(verb, *place): say for verb, say in verbs for place in places
        }

    def _who(self) -> dict[str, Any]:
        host = self._host
        facts = {
            "namespace": self._namespace,
            "host": host.owner,
            "serves": ",".join(host.serves()),
        }
        found = {name: text[:_MAX_METADATA] for name, text in facts.items()}
        return {"id": self._id, "name": NAME, "version": host.version, "metadata": found}

    def _ping(self) -> bytes:
        return json.dumps(service.ServicePing(**self._who()).to_dict()).encode()

    def _info(self) -> bytes:
        endpoints = [one.info() for one in self._endpoints]
        found = service.ServiceInfo(**self._who(), description=_DESCRIPTION, endpoints=endpoints)
        return json.dumps(found.to_dict()).encode()

    def _stats(self) -> bytes:
        endpoints = [one.stats() for one in self._endpoints]
        found = service.ServiceStats(**self._who(), started=self._host.started, endpoints=endpoints)
        return json.dumps(found.to_dict()).encode()
