"""The creation of the streams, and a check of those that exist."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from actors.errors import BrokerError
from broker.errors import StreamMismatchError
from broker.mail.stream_plan import EXTERNAL, LETTERS, POSTS, Config, StreamNames, StreamPlan
from broker.nats_client import JetStreamOffError
from broker.wire.subjects import Subjects

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
    hurried: Api | None = None,
) -> StreamNames:
    """Create or update the streams. Idempotent, and safe when several hosts do it at once.

    Args:
        api: Sends a request to ``$JS.API.<first argument>`` and returns its JSON answer, with an
            ``error`` key as the server gave it. Raises BrokerError when none comes.
        subjects: The deployment's names.
        deployment: Id of the database to which the messages belong.
        replicas: 1, or 3 on a cluster.
        mail_max_bytes: See `StreamPlan`.
        hurried: As `api`, with less patience, for streams without which messages between agents move. One
            that does not answer is passed over: a cluster that lost a server is choosing its leader.

    Raises:
        StreamMismatchError: The streams belong to another deployment, or are of another kind.
        BrokerError: The server did not answer, or refused.
    """
    plan = StreamPlan(
        subjects=subjects, deployment=deployment, replicas=replicas, mail_max_bytes=mail_max_bytes
    )
    silent = await _check_all(api, plan, hurried)
    await _make(api, plan.dead(), silent)
    for _ in range(_ATTEMPTS):
        edge = await _edge(api, plan, silent)
        topic, mail = plan.topic(edge), plan.mail(edge)
        await _make(api, topic, silent)
        await _make(api, mail)
        if await _edge_name(api, subjects) == edge:
            return StreamNames(mail["name"], edge, topic["name"], subjects.stream("DEAD"))
    msg = f"the stream of {subjects.prefixed(EXTERNAL)} is deleted again and again"
    raise BrokerError(msg)


async def _check_all(api: Api, plan: StreamPlan, hurried: Api | None) -> frozenset[str]:
    """Refuse before anything is made: a host with the wrong database leaves no trace.

    Returns the names of streams that exist and do not answer within a short time limit.
    """
    _check(await _config(api, plan.subjects.stream("MAIL")), plan)
    others = [(plan.subjects.stream(name), pattern) for name, pattern in _OTHERS]
    if (edge := await _edge_name(api, plan.subjects)) is not None:
        others.append((edge, EXTERNAL))
    silent = set[str]()
    for name, pattern in others:
        try:
            _check(await _config(hurried or api, name), plan)
        except JetStreamOffError:
            if hurried is not None and name in await _names(api, plan.subjects.prefixed(pattern)):
                silent.add(name)
            else:
                _check(await _config(api, name), plan)
    return frozenset(silent)


def _check(found: Config | None, plan: StreamPlan) -> None:
    if found is not None:
        _check_deployment(found, plan.deployment)


async def _edge(api: Api, plan: StreamPlan, silent: frozenset[str]) -> str:
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
            if differs := differing(answer["config"], config):
                raise _not_taken(config["name"], differs)
            return str(config["name"])
        if not name.startswith(prefix):
            pattern = plan.subjects.prefixed(EXTERNAL)
            remedy = "Take the subject away from it, or give this deployment another namespace."
            raise StreamMismatchError(name, f"holds {pattern}", remedy)
        if name in silent:
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


async def _make(api: Api, wanted: Config, silent: frozenset[str] = frozenset()) -> None:
    """Create the stream, or update what differs; settings not named here stay as they are."""
    name, differs = wanted["name"], list[str]()
    if name in silent:
        return
    for _ in range(_ATTEMPTS):
        found = await _config(api, name)
        if found is not None:
            _check_deployment(found, wanted["metadata"]["deployment"])
        if found is None or differing(found, wanted):
            wanted = await _within_account(api, wanted)
        if found is None:
            answer = await api(f"STREAM.CREATE.{name}", wanted)
        elif not differing(found, wanted):
            return
        else:
            metadata = {**found.get("metadata", {}), **wanted["metadata"]}
            ours = {name: value for name, value in wanted.items() if name not in OPERATORS}
            changed = {**found, **ours, "metadata": metadata}
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


async def _within_account(api: Api, wanted: Config) -> Config:
    """Return the configuration with no more consumers than the server gives this account."""
    if "max_consumers" not in wanted:
        return wanted
    account = await api("INFO", {})
    _raise_for(account, "INFO")
    tier = account.get("tiers", {}).get(f"R{wanted['num_replicas']}", account)
    allowed = int(tier.get("limits", {}).get("max_consumers", 0))
    most = min(wanted["max_consumers"], allowed) if allowed > 0 else wanted["max_consumers"]
    return {**wanted, "max_consumers": most}


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
            "is gone for good: delete this namespace's streams; what external clients published and no "
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
        if name not in OPERATORS and not _agrees(found.get(name), value)
    )


def _agrees(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            _agrees(found.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        same = isinstance(found, list) and len(found) == len(wanted)
        return same and all(map(_agrees, found, wanted))
    return bool(found == wanted) or not (found or wanted)


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
