"""The streams as data, and how they come into being.

What is in MAIL and TOPIC is also in the senders' outbox or in EDGE; only EDGE holds what nobody
else does. So MAIL and TOPIC may be deleted at any time, and EDGE never loses anything on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from actors.errors import BrokerError
from actors.kernel.runtime.shards import TOPICS
from broker.errors import StreamMismatchError

if TYPE_CHECKING:
    from broker.subjects import Subjects

Config: TypeAlias = dict[str, Any]
"""A stream's configuration as the server's JSON: its clients' classes drop fields they do not know."""
Api: TypeAlias = Callable[[str, Config], Awaitable[dict[str, Any]]]

MAX_CONSUMERS: Final = 6000
"""Set on every stream: without it the 1,001st consumer is refused."""
EDGE_MAX_MESSAGE_BYTES: Final = 512 * 1024
"""More is refused at publish; 256 KiB to this becomes a dead letter that says why."""
MAIL_MAX_MESSAGE_BYTES: Final = 1024 * 1024
EXTERNAL: Final = "agent.v1.*.*.*.ext.*"
"""Messages of outsiders; whichever stream holds these subjects is EDGE."""

_SIGNALS: Final = "agent.v1.*.*.*.sig.*.*.*"
_OUTSIDE_POSTS: Final = "topic.v1.*.*.*.ext.*"
_POSTS: Final = "topic.v1.*.*.*"
_ATTEMPTS: Final = 8

_NOT_FOUND: Final = 10059
_NAME_IN_USE: Final = 10058
_OVERLAP: Final = 10065
_REFUSED_CONFIG: Final = 10052


@dataclass(frozen=True, slots=True)
class StreamNames:
    """The real names of the streams on the server; EDGE's differs after it was made anew."""

    mail: str
    edge: str
    topic: str
    dead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What decides the streams' configurations.

    Attributes:
        subjects: The deployment's names.
        deployment: Id of the database to which the mail belongs.
        replicas: 1, or 3 on a cluster.
        mail_max_bytes: -1 for what the server has. A limit is reserved on the disk at once.
        topic_max_age: How long posts stay.
    """

    subjects: Subjects
    deployment: str
    replicas: int = 1
    mail_max_bytes: int = -1
    topic_max_age: timedelta = timedelta(days=7)

    def edge(self, name: str) -> Config:
        """Return what outsiders publish; synced before its PubAck, kept 7 days."""
        # A stream without sources has a window of at least 100 ms in which two publishers' messages
        # of the same id, even of two tenants, are one. So it has a source, which is always empty.
        nothing = self.subjects.prefixed("dead.v1.none.none.none.none")
        return self._stream(
            name,
            (EXTERNAL, _SIGNALS, _OUTSIDE_POSTS),
            sources=[{"name": self.subjects.stream("DEAD"), "filter_subject": nothing}],
            discard="new",
            max_age=_nanoseconds(timedelta(days=7)),
            max_msg_size=EDGE_MAX_MESSAGE_BYTES,
            deny_delete=True,
            deny_purge=True,
        )

    def mail(self, edge: str) -> Config:
        """Return the mailboxes of all agents, and what outsiders post."""
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
                {"name": edge, "subject_transforms": transforms},
                {"name": edge, "subject_transforms": posts},
            ],
            discard="new",
            max_bytes=self.mail_max_bytes,
            max_age=0,
            max_msg_size=MAIL_MAX_MESSAGE_BYTES,
            compression="s2",
            deny_delete=False,
            deny_purge=False,
            **self._held_elsewhere(),
        )

    def topic(self, edge: str) -> Config:
        """Return all posts, for whoever watches them: followers get theirs by rows and mail."""
        post = "topic.v1.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}"
        prefixed = self.subjects.prefixed
        transform = {"src": prefixed(_OUTSIDE_POSTS), "dest": prefixed(post)}
        return self._stream(
            self.subjects.stream("TOPIC"),
            (_POSTS,),
            sources=[{"name": edge, "subject_transforms": [transform]}],
            max_age=_nanoseconds(self.topic_max_age),
            **self._held_elsewhere(),
        )

    def dead(self) -> Config:
        """Return the dead letters, for whoever watches them."""
        age = _nanoseconds(timedelta(days=90))
        name = self.subjects.stream("DEAD")
        return self._stream(name, ("dead.v1.*.*.*",), max_age=age, duplicate_window=100_000_000)

    def _stream(self, name: str, patterns: tuple[str, ...], **rest: Any) -> Config:
        return {
            "name": name,
            "subjects": [self.subjects.prefixed(pattern) for pattern in patterns],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self.replicas,
            # Off, which only a stream with sources can have: Postgres dedups, in the commit.
            "duplicate_window": 0,
            "max_consumers": MAX_CONSUMERS,
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


async def ensure(
    api: Api,
    subjects: Subjects,
    *,
    deployment: str,
    replicas: int = 1,
    mail_max_bytes: int = -1,
) -> StreamNames:
    """Create or update the streams. Idempotent, and safe when several hosts do it at once.

    Args:
        api: Sends a request to ``$JS.API.<first argument>`` and returns its JSON answer, with an
            ``error`` key as the server gave it. Raises BrokerError when none comes.
        subjects: The deployment's names.
        deployment: Id of the database to which the mail belongs.
        replicas: 1, or 3 on a cluster.
        mail_max_bytes: See `StreamPlan`.

    Raises:
        StreamMismatchError: The streams belong to another deployment, or are of another kind.
        BrokerError: The server did not answer, or refused.
    """
    plan = StreamPlan(
        subjects=subjects, deployment=deployment, replicas=replicas, mail_max_bytes=mail_max_bytes
    )
    await _check_all(api, plan)
    await _make(api, plan.dead())
    for _ in range(_ATTEMPTS):
        edge = await _edge(api, plan)
        topic, mail = plan.topic(edge), plan.mail(edge)
        await _make(api, topic)
        await _make(api, mail)
        if await _edge_name(api, subjects) == edge:
            return StreamNames(mail["name"], edge, topic["name"], subjects.stream("DEAD"))
    msg = f"the stream of {subjects.prefixed(EXTERNAL)} is deleted again and again"
    raise BrokerError(msg)


async def _check_all(api: Api, plan: StreamPlan) -> None:
    """Refuse before anything is made: a host with the wrong database leaves no trace."""
    names = [plan.subjects.stream(name) for name in ("MAIL", "TOPIC", "DEAD")]
    if (edge := await _edge_name(api, plan.subjects)) is not None:
        names.append(edge)
    for name in names:
        if (found := await _config(api, name)) is not None:
            _check_deployment(found, plan.deployment)


async def _edge(api: Api, plan: StreamPlan) -> str:
    """Return the name of the one stream that holds what outsiders publish; make it if need be."""
    prefix = plan.subjects.stream("EDGE") + "_"
    for _ in range(_ATTEMPTS):
        name = await _edge_name(api, plan.subjects)
        if name is None:
            # Ids of messages without one are made from this name and the sequence: a stream made
            # anew counts from 1 again and must not have the name of one before it.
            config = plan.edge(f"{prefix}{_base36(time.time_ns() // 1_000_000)}")
            answer = await api(f"STREAM.CREATE.{config['name']}", config)
            if _code(answer) in (_OVERLAP, _NAME_IN_USE):
                continue
            _raise_for_stream(answer, config["name"])
            if differs := differing(answer["config"], config):
                raise _not_taken(config["name"], differs)
            return str(config["name"])
        if not name.startswith(prefix):
            pattern = plan.subjects.prefixed(EXTERNAL)
            remedy = "Take the subject away from it, or give this deployment another namespace."
            raise StreamMismatchError(name, f"holds {pattern}", remedy)
        if await _config(api, name) is not None:
            await _make(api, plan.edge(name))
            return name
    msg = f"could neither find nor make the stream {prefix}*"
    raise BrokerError(msg)


async def _edge_name(api: Api, subjects: Subjects) -> str | None:
    answer = await api("STREAM.NAMES", {"subject": subjects.prefixed(EXTERNAL)})
    _raise_for(answer, "STREAM.NAMES")
    return next(iter(answer.get("streams") or ()), None)


async def _config(api: Api, name: str) -> Config | None:
    answer = await api(f"STREAM.INFO.{name}", {})
    if _code(answer) == _NOT_FOUND:
        return None
    _raise_for(answer, name)
    config: Config = answer["config"]
    return config


async def _make(api: Api, wanted: Config) -> None:
    """Create the stream, or update what differs; settings not named here stay as they are."""
    name, differs = wanted["name"], list[str]()
    for _ in range(_ATTEMPTS):
        found = await _config(api, name)
        if found is None:
            answer = await api(f"STREAM.CREATE.{name}", wanted)
        else:
            _check_deployment(found, wanted["metadata"]["deployment"])
            if not differing(found, wanted):
                return
            metadata = {**found.get("metadata", {}), **wanted["metadata"]}
            changed = {**found, **wanted, "metadata": metadata}
            answer = await api(f"STREAM.UPDATE.{name}", changed)
        if _code(answer) in (_NAME_IN_USE, _NOT_FOUND):
            continue  # another host was faster
        _raise_for_stream(answer, name)
        if not (differs := differing(answer["config"], wanted)):
            return
    if differs:
        raise _not_taken(name, differs)
    msg = f"stream {name} is made and deleted again and again"
    raise BrokerError(msg)


def _raise_for_stream(answer: Mapping[str, Any], name: str) -> None:
    """Raise unless the server made or updated the stream."""
    if _code(answer) == _OVERLAP:
        remedy = "Take them away from it, or give this deployment another namespace."
        raise StreamMismatchError(name, "another stream has some of its subjects", remedy)
    if _code(answer) == _REFUSED_CONFIG:
        problem = f"the server refuses a setting: {answer['error'].get('description')}"
        raise StreamMismatchError(name, problem, _remedy(name))
    _raise_for(answer, name)


def _not_taken(name: str, differs: list[str]) -> StreamMismatchError:
    problem = f"the server does not take {', '.join(differs)}"
    return StreamMismatchError(name, problem, "nats-server 2.14 or newer is needed.")


def _check_deployment(found: Config, deployment: str) -> None:
    owner = found.get("metadata", {}).get("deployment")
    if owner not in (None, deployment):
        problem = f"belongs to the database {owner}, this one is {deployment}"
        remedy = (
            "Use that database, or give this one a namespace of its own. Only if the other database "
            "is gone for good: delete this namespace's streams; what outsiders published and no "
            "host has read is then lost."
        )
        raise StreamMismatchError(str(found["name"]), problem, remedy)


def _remedy(name: str) -> str:
    if "EDGE_" in name:
        return (
            "Let the hosts read what is in it (`nats stream info`), then delete it; it is made "
            "anew. What no host has read is lost."
        )
    return "Stop the hosts, delete the stream and start them: what is in it is held elsewhere too."


def differing(found: Mapping[str, Any], wanted: Config) -> list[str]:
    """Return the names of settings that are not as wanted; the server leaves out what is empty."""
    return sorted(
        name
        for name, value in wanted.items()
        if not _agrees(found.get(name), value) and (value or found.get(name))
    )


def _agrees(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            _agrees(found.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        same = isinstance(found, list) and len(found) == len(wanted)
        return same and all(map(_agrees, found, wanted))
    return bool(found == wanted)


def _code(answer: Mapping[str, Any]) -> int:
    code: int = answer.get("error", {}).get("err_code", 0)
    return code


def _raise_for(answer: Mapping[str, Any], what: str) -> None:
    if error := answer.get("error"):
        msg = f"{what}: the server says {error.get('description')} ({error.get('err_code')})"
        raise BrokerError(msg)


def _nanoseconds(span: timedelta) -> int:
    return int(span.total_seconds()) * 1_000_000_000


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"
