"""The streams of a deployment: as data, their creation, and a check of those that exist.

What is in MAIL and TOPIC is also in the senders' outbox or in EDGE; only EDGE holds what no host
else does. So MAIL and TOPIC may be deleted at any time, and EDGE never loses anything on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from actors._kernel.runtime.ids import TOPICS
from actors.errors import BrokerError
from broker._errors import StreamMismatchError
from broker._nats_client import JetStreamOffError
from broker._wire.subjects import Subjects

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
        empty_subject = self.subjects.prefixed("dead.v1.none.none.none.none")
        return self._stream(
            name,
            (EXTERNAL, _SIGNALS, _OUTSIDE_POSTS),
            sources=[_source(self.subjects.stream("DEAD"), filter_subject=empty_subject)],
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
        mailbox = prefixed(
            f"mail.{{{{wildcard(2)}}}}.{partition}.{{{{wildcard(1)}}}}.{{{{wildcard(3)}}}}"
        )
        inboxes = prefixed("agent.v1.*.*.*.in")
        transforms = [{"src": prefixed(src), "dest": mailbox} for src in (EXTERNAL, _SIGNALS)]
        post = (
            f"mail.{TOPICS}.{partition}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{wildcard(3)}}}}"
        )
        posts = [{"src": prefixed(_OUTSIDE_POSTS), "dest": prefixed(post)}]
        return self._stream(
            self.subjects.stream("MAIL"),
            ("agent.v1.*.*.*.in", "mail.*.*.*.*", f"mail.{TOPICS}.*.*.*.*"),
            subject_transform={"src": inboxes, "dest": mailbox},
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
            **self._persist_mode(),
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
            **self._persist_mode(),
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

    def _persist_mode(self) -> Config:
        """Return the setting that is 14 times faster and may lose the last milliseconds."""
        return {"persist_mode": "async"} if self.replicas == 1 else {}


def _source(name: str, **rest: Any) -> Config:
    """Return a source of this account, read from its beginning."""
    # From the first message on: without it the server begins a source that it has not read so far at the
    # time of the last message, where there was one, and what was acknowledged before that is skipped.
    return {"name": name, "external": None, "opt_start_seq": 1, "opt_start_time": None, **rest}


def _nanoseconds(span: timedelta) -> int:
    return int(span.total_seconds()) * 1_000_000_000


Api: TypeAlias = Callable[[str, Config], Awaitable[dict[str, Any]]]
OPERATORS: Final = frozenset({"max_bytes"})
"""Asked for when a stream is made; from then on the operator of the server decides."""
_OTHERS: Final[tuple[tuple[Literal["TOPIC", "DEAD"], str], ...]] = (
    ("TOPIC", POSTS),
    ("DEAD", LETTERS),
)
"""Streams whose names do not change, beside MAIL, and what they alone hold."""
_ATTEMPTS: Final = 8
_NOT_FOUND: Final = 10059
_NAME_IN_USE: Final = 10058
_OVERLAP: Final = 10065
_REFUSED_CONFIG: Final = 10052


async def ensure(
    api: Api,
    subjects: Subjects,
    *,
    deployment: str,
    replicas: int = 1,
    mail_max_bytes: int = -1,
    hurried_api: Api | None = None,
) -> StreamNames:
    """Create or update the streams. Idempotent, and safe when several hosts do it at once.

    Args:
        api: Sends a request to ``$JS.API.<first argument>`` and returns its JSON answer, with an
            ``error`` key as the server gave it. Raises BrokerError when none comes.
        subjects: The deployment's names.
        deployment: Id of the database to which the messages belong.
        replicas: 1, or 3 on a cluster.
        mail_max_bytes: Limit of the stream MAIL; -1 for what the server has.
        hurried_api: As `api`, with less patience, for streams without which messages between agents move. One
            that does not answer is passed over: a cluster that lost a server is choosing its leader.

    Raises:
        StreamMismatchError: The streams belong to another deployment, or are of another kind.
        BrokerError: The server did not answer, or refused.
    """
    plan = StreamPlan(
        subjects=subjects, deployment=deployment, replicas=replicas, mail_max_bytes=mail_max_bytes
    )
    silent_streams = await _check_all(api, plan, hurried_api)
    await _make(api, plan.dead(), silent_streams)
    for _ in range(_ATTEMPTS):
        edge = await _edge(api, plan, silent_streams)
        topic, mail = plan.topic(edge), plan.mail(edge)
        await _make(api, topic, silent_streams)
        await _make(api, mail)
        # Another host may have made EDGE anew meanwhile: MAIL and TOPIC would read from one that is gone.
        if await _edge_name(api, subjects) == edge:
            return StreamNames(mail["name"], edge, topic["name"], subjects.stream("DEAD"))
    msg = f"the stream of {subjects.prefixed(EXTERNAL)} is deleted again and again"
    raise BrokerError(msg)


async def _check_all(api: Api, plan: StreamPlan, hurried_api: Api | None) -> frozenset[str]:
    """Refuse before anything is made: a host with the wrong database leaves no trace.

    Returns the names of streams that exist and do not answer within a short time limit.
    """
    _check(await _config(api, plan.subjects.stream("MAIL")), plan)
    others = [(plan.subjects.stream(name), pattern) for name, pattern in _OTHERS]
    if (edge := await _edge_name(api, plan.subjects)) is not None:
        others.append((edge, EXTERNAL))
    silent_streams = set[str]()
    for name, pattern in others:
        try:
            _check(await _config(hurried_api or api, name), plan)
        except JetStreamOffError:
            if hurried_api is not None and name in await _names(
                api, plan.subjects.prefixed(pattern)
            ):
                silent_streams.add(name)
            else:
                _check(await _config(api, name), plan)
    return frozenset(silent_streams)


def _check(config: Config | None, plan: StreamPlan) -> None:
    if config is not None:
        _check_deployment(config, plan.deployment)


async def _edge(api: Api, plan: StreamPlan, silent_streams: frozenset[str]) -> str:
    """Return the name of the one stream that holds what external clients publish; make it if need be."""
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
            if differences := differing(answer["config"], config):
                raise _unsupported_settings(config["name"], differences)
            return str(config["name"])
        if not name.startswith(prefix):
            pattern = plan.subjects.prefixed(EXTERNAL)
            remedy = "Take the subject away from it, or give this deployment another namespace."
            raise StreamMismatchError(name, f"holds {pattern}", remedy)
        if name in silent_streams:
            return name
        if await _config(api, name) is not None:
            await _make(api, plan.edge(name))
            return name
    msg = f"could neither find nor make the stream {prefix}*"
    raise BrokerError(msg)


async def _edge_name(api: Api, subjects: Subjects) -> str | None:
    return next(iter(await _names(api, subjects.prefixed(EXTERNAL))), None)


async def _names(api: Api, pattern: str) -> list[str]:
    """Return the streams that hold these subjects; whether they have leaders does not matter."""
    answer = await api("STREAM.NAMES", {"subject": pattern})
    _raise_for(answer, "STREAM.NAMES")
    return list(answer.get("streams") or ())


async def _config(api: Api, name: str) -> Config | None:
    answer = await api(f"STREAM.INFO.{name}", {})
    if _code(answer) == _NOT_FOUND:
        return None
    _raise_for(answer, name)
    config: Config = answer["config"]
    return config


async def _make(api: Api, config: Config, silent_streams: frozenset[str] = frozenset()) -> None:
    """Create the stream, or update what differs; settings not named here stay as they are."""
    name, differences = config["name"], list[str]()
    if name in silent_streams:
        return
    for _ in range(_ATTEMPTS):
        existing = await _config(api, name)
        if existing is not None:
            _check_deployment(existing, config["metadata"]["deployment"])
        if existing is None or differing(existing, config):
            config = await _within_account(api, config)
        if existing is None:
            answer = await api(f"STREAM.CREATE.{name}", config)
        elif not differing(existing, config):
            return
        else:
            metadata = {**existing.get("metadata", {}), **config["metadata"]}
            our_settings = {name: value for name, value in config.items() if name not in OPERATORS}
            new_config = {**existing, **our_settings, "metadata": metadata}
            answer = await api(f"STREAM.UPDATE.{name}", new_config)
        if _code(answer) in (_NAME_IN_USE, _NOT_FOUND):
            continue  # another host was faster
        _raise_for_stream(answer, name)
        if not (differences := differing(answer["config"], config)):
            return
    if differences:
        raise _unsupported_settings(name, differences)
    msg = f"stream {name} is made and deleted again and again"
    raise BrokerError(msg)


async def _within_account(api: Api, config: Config) -> Config:
    """Return the configuration with no more consumers than the server gives this account."""
    if "max_consumers" not in config:
        return config
    account = await api("INFO", {})
    _raise_for(account, "INFO")
    tier = account.get("tiers", {}).get(f"R{config['num_replicas']}", account)
    account_limit = int(tier.get("limits", {}).get("max_consumers", 0))
    count = (
        min(config["max_consumers"], account_limit)
        if account_limit > 0
        else config["max_consumers"]
    )
    return {**config, "max_consumers": count}


def _raise_for_stream(answer: Mapping[str, Any], name: str) -> None:
    """Raise unless the server made or updated the stream."""
    if _code(answer) == _OVERLAP:
        remedy = "Take them away from it, or give this deployment another namespace."
        raise StreamMismatchError(name, "another stream has some of its subjects", remedy)
    if _code(answer) == _REFUSED_CONFIG:
        problem = f"the server refuses a setting: {answer['error'].get('description')}"
        raise StreamMismatchError(name, problem, _remedy(name))
    _raise_for(answer, name)


def _unsupported_settings(name: str, differences: list[str]) -> StreamMismatchError:
    problem = f"the server does not take {', '.join(differences)}"
    return StreamMismatchError(name, problem, "nats-server 2.14 or newer is needed.")


def _check_deployment(config: Config, deployment: str) -> None:
    owner = config.get("metadata", {}).get("deployment")
    if owner not in (None, deployment):
        problem = f"belongs to the database {owner}, this one is {deployment}"
        remedy = (
            "Use that database, or give this one a namespace of its own. Only if the other database "
            "is gone for good: delete this namespace's streams; what external clients published and no "
            "host has read is then lost."
        )
        raise StreamMismatchError(str(config["name"]), problem, remedy)


def _remedy(name: str) -> str:
    if "EDGE_" in name:
        return (
            "Let the hosts read what is in it (`nats stream info`), then delete it; it is made "
            "anew. What no host has read is lost."
        )
    return "Stop the hosts, delete the stream and start them: what is in it is held elsewhere too."


def differing(existing: Mapping[str, Any], config: Config) -> list[str]:
    """Return the names of settings that are not as wanted; the server leaves out what is empty."""
    return sorted(
        name
        for name, value in config.items()
        if name not in OPERATORS and not _agrees(existing.get(name), value)
    )


def _agrees(actual: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            _agrees(actual.get(key), value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        is_same_length = isinstance(actual, list) and len(actual) == len(expected)
        return is_same_length and all(map(_agrees, actual, expected))
    return bool(actual == expected) or not (actual or expected)


def _code(answer: Mapping[str, Any]) -> int:
    code: int = answer.get("error", {}).get("err_code", 0)
    return code


def _raise_for(answer: Mapping[str, Any], what: str) -> None:
    if error := answer.get("error"):
        msg = f"{what}: the server says {error.get('description')} ({error.get('err_code')})"
        raise BrokerError(msg)


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"
