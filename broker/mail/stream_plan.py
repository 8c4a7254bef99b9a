"""The streams as data: their subjects, limits and sources.

What is in MAIL and TOPIC is also in the senders' outbox or in EDGE; only EDGE holds what no host
else does. So MAIL and TOPIC may be deleted at any time, and EDGE never loses anything on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from actors.kernel.runtime.ids import TOPICS
from broker.wire.subjects import Subjects

Config: TypeAlias = dict[str, Any]
"""A stream's configuration as the server's JSON: its clients' classes drop fields they do not know."""
MAX_CONSUMERS: Final = 6000
"""Maximum number of MAIL's consumers, unless the account allows fewer. Without it the server allows 1,000."""
EDGE_MAX_MESSAGE_BYTES: Final = 512 * 1024
"""Largest message on EDGE: a larger one is refused at publish. One above 256 KiB becomes a dead letter."""
MAIL_MAX_MESSAGE_BYTES: Final = 1024 * 1024
EXTERNAL: Final = "agent.v1.*.*.*.ext.*"
"""Messages of external clients; whichever stream holds these subjects is EDGE."""
_SIGNALS: Final = "agent.v1.*.*.*.sig.*.*.*"
_OUTSIDE_POSTS: Final = "topic.v1.*.*.*.ext.*"
POSTS: Final = "topic.v1.*.*.*"
LETTERS: Final = "dead.v1.*.*.*"


@dataclass(frozen=True, slots=True)
class StreamNames:
    """The real names of the streams on the server; EDGE's differs after it was made anew."""

    mail: str
    edge: str
    topic: str
    dead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """The settings that decide the streams' configurations.

    Attributes:
        subjects: The deployment's names.
        deployment: Id of the database to which the messages belong.
        replicas: 1, or 3 on a cluster.
        mail_max_bytes: -1 for what the server has. A limit is reserved on the disk at once.
        topic_max_age: Time for which posts stay.
    """

    subjects: Subjects
    deployment: str
    replicas: int = 1
    mail_max_bytes: int = -1
    topic_max_age: timedelta = timedelta(days=7)

    def edge(self, name: str) -> Config:
        """Return the stream EDGE: messages of external clients, synced before their PubAck, kept 7 days."""
        # A stream without sources has a window of at least 100 ms in which two publishers' messages
        # of the same id, even of two tenants, are one. So it has a source, which is always empty.
        nothing = self.subjects.prefixed("dead.v1.none.none.none.none")
        return self._stream(
            name,
            (EXTERNAL, _SIGNALS, _OUTSIDE_POSTS),
            sources=[_source(self.subjects.stream("DEAD"), filter_subject=nothing)],
            discard="new",
            max_age=_nanoseconds(timedelta(days=7)),
            max_msg_size=EDGE_MAX_MESSAGE_BYTES,
            deny_delete=True,
            deny_purge=True,
        )

    def mail(self, edge: str) -> Config:
        """Return the stream MAIL: the mailboxes of all agents, and posts of external clients."""
        prefixed = self.subjects.prefixed
        partition = f"{{{{partition({self.subjects.partitions},1,2,3)}}}}"
        stored = prefixed(
            f"mail.{{{{wildcard(2)}}}}.{partition}.{{{{wildcard(1)}}}}.{{{{wildcard(3)}}}}"
        )
        inboxes = prefixed("agent.v1.*.*.*.in")
        transforms = [{"src": prefixed(src), "dest": stored} for src in (EXTERNAL, _SIGNALS)]
        post = (
            f"mail.{TOPICS}.{partition}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{wildcard(3)}}}}"
        )
        posts = [{"src": prefixed(_OUTSIDE_POSTS), "dest": prefixed(post)}]
        return self._stream(
            self.subjects.stream("MAIL"),
            ("agent.v1.*.*.*.in", "mail.*.*.*.*", f"mail.{TOPICS}.*.*.*.*"),
            subject_transform={"src": inboxes, "dest": stored},
            # Posts are a source of their own: with one transform more the other one would begin again,
            # with all that EDGE holds.
            sources=[
                _source(edge, subject_transforms=transforms),
                _source(edge, subject_transforms=posts),
            ],
            discard="new",
            max_bytes=self.mail_max_bytes,
            max_age=0,
            max_consumers=MAX_CONSUMERS,
            max_msg_size=MAIL_MAX_MESSAGE_BYTES,
            compression="s2",
            deny_delete=False,
            deny_purge=False,
            **self._held_elsewhere(),
        )

    def topic(self, edge: str) -> Config:
        """Return the stream of all posts, for observers: followers get theirs by rows and messages."""
        post = "topic.v1.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}"
        prefixed = self.subjects.prefixed
        transform = {"src": prefixed(_OUTSIDE_POSTS), "dest": prefixed(post)}
        return self._stream(
            self.subjects.stream("TOPIC"),
            (POSTS,),
            sources=[_source(edge, subject_transforms=[transform])],
            max_age=_nanoseconds(self.topic_max_age),
            **self._held_elsewhere(),
        )

    def dead(self) -> Config:
        """Return the stream of dead letters, for observers."""
        age = _nanoseconds(timedelta(days=90))
        name = self.subjects.stream("DEAD")
        return self._stream(name, (LETTERS,), max_age=age, duplicate_window=100_000_000)

    def _stream(self, name: str, patterns: tuple[str, ...], **rest: Any) -> Config:
        return {
            "name": name,
            "subjects": [self.subjects.prefixed(pattern) for pattern in patterns],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self.replicas,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msgs_per_subject": -1,
            "discard": "old",
            # What would bring in, send on, change or lose messages beside what is said here.
            "mirror": None,
            "sources": None,
            "republish": None,
            "subject_transform": None,
            "no_ack": False,
            "sealed": False,
            # Off, which only a stream with sources can have: Postgres dedups, in the commit.
            "duplicate_window": 0,
            "allow_direct": True,
            "allow_rollup_hdrs": False,
            "allow_msg_schedules": False,
            "allow_msg_ttl": False,
            "metadata": {"deployment": self.deployment},
            **rest,
        }

    def _held_elsewhere(self) -> Config:
        """Return the setting that is 14 times faster and may lose the last milliseconds."""
        return {"persist_mode": "async"} if self.replicas == 1 else {}


def _source(name: str, **rest: Any) -> Config:
    """Return a source of this account, read from its beginning."""
    # From the first message on: without it the server begins a source that it has not read so far at the
    # time of the last message, where there was one, and what was acknowledged before that is skipped.
    return {"name": name, "external": None, "opt_start_seq": 1, "opt_start_time": None, **rest}


def _nanoseconds(span: timedelta) -> int:
    return int(span.total_seconds()) * 1_000_000_000
