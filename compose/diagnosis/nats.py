"""NATS: the server, its JetStream, and the streams of this deployment. Reads only."""

from __future__ import annotations

import json
import secrets
import statistics
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker import RefusedError, ServerError, Subjects
from broker.api import Requests
from broker.limits import NEEDED_PAYLOAD_BYTES
from broker.nats_client import Server, open_client
from broker.permissions import HOST_INBOX
from broker.streams import EXTERNAL, StreamPlan, differing
from compose.diagnosis.finding import Finding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.json import JsonValue
    from broker.nats_client import Client
    from broker.streams import Config
    from broker.subjects import StreamName
    from compose.diagnosis.finding import Level

OLDEST_SERVER: Final = (2, 14, 5)
"""Before it, message schedules and atomic batches have known errors."""
WANTED_SERVER: Final = (2, 15, 0)
"""From it on, replicated streams sync in groups, and an outsider cannot forge a stream's source."""
CONNECT_S: Final = 2.0
FULL: Final = 0.9
"""Of a stream's consumers: every shard of every host needs one."""
STREAMS: Final[tuple[StreamName, ...]] = ("MAIL", "EDGE", "TOPIC", "DEAD")
_ROUND_TRIPS: Final = 5
_SETTINGS: Final = "$SYS.REQ.SERVER.PING.VARZ"
# Sizes and places are the operator's; the rest of the configuration is what the promises rest on.
_OPERATORS: Final = {"name", "max_bytes", "num_replicas", "placement", "metadata", "sources"}


async def diagnose_nats(
    url: str | Server, *, namespace: str = "", deployment: str | None = None
) -> list[Finding]:
    """Return what was found, in the order in which it matters.

    Args:
        url: Of one server or, separated by commas, of several of a cluster; or how to log in there.
        namespace: Of the streams.
        deployment: Id of the database that the streams must belong to; None: any, but one.
    """
    subjects = Subjects(namespace)
    found: list[Finding] = []
    try:
        async with _connected(url) as (client, requests):
            found.append(_server(client.connected_server_version, await _round_trip_ms(client)))
            found.append(_largest_message(client.max_payload))
            found.append(_jetstream(await _account(requests)))
            if not found[-1].data["enabled"]:
                return found
            found.append(_sync(await _sync_interval(requests)))
            streams = await _streams(requests, subjects)
            found.append(_configuration(streams, subjects, deployment))
            found.append(_consumers(streams.get("MAIL")))
    except ServerError as exc:
        found.append(_trouble(exc, is_reachable=bool(found)))
    return found


@asynccontextmanager
async def _connected(url: str | Server) -> AsyncIterator[tuple[Client, Requests]]:
    if isinstance(url, str):
        url = Server(urls=tuple(url.split(",")))
    server = replace(url, name="callboard-doctor", connect_timeout_s=CONNECT_S)
    inbox = f"{HOST_INBOX}.{secrets.token_hex(11)}"
    client = await open_client(server, inbox_prefix=inbox)
    requests = Requests(client, f"{inbox}.call")
    client.on_lost, client.on_denied = requests.fail_all, requests.denied
    try:
        await requests.open()
        yield client, requests
    finally:
        await client.shut()


# --- asking -------------------------------------------------------------------------------------


async def _round_trip_ms(client: Client) -> float:
    took: list[float] = []
    for _ in range(_ROUND_TRIPS):
        asked = time.perf_counter()
        await client.flush()
        took.append(time.perf_counter() - asked)
    return statistics.median(took) * 1000


async def _account(requests: Requests) -> dict[str, Any]:
    try:
        return await requests.api("INFO", {})
    except RefusedError as exc:  # nobody is there who could answer with an error
        return {"error": {"description": exc.problem}}


async def _sync_interval(requests: Requests) -> str | None:
    """Return ``always`` or a span; None where this account may not see it, which is usual."""
    try:
        answer = await requests.request("reading settings", _SETTINGS, b"", limit_s=CONNECT_S)
    except ServerError:
        return None
    config = json.loads(answer.data).get("data", {}).get("jetstream", {}).get("config", {})
    if config.get("sync_always"):
        return "always"
    nanoseconds = config.get("sync_interval")
    return None if nanoseconds is None else f"{nanoseconds / 1e9:g} s"


async def _streams(requests: Requests, subjects: Subjects) -> dict[str, dict[str, Any]]:
    """Return the server's answers about the streams that there are, by their plain names."""
    asked = {"subject": subjects.prefixed(EXTERNAL)}
    listed = (await requests.api_or_raise("STREAM.NAMES", asked)).get("streams") or ()
    edges = [name for name in listed if name.startswith(subjects.stream("EDGE"))]
    names = {plain: subjects.stream(plain) for plain in STREAMS}
    if edges:
        names["EDGE"] = edges[0]
    else:
        del names["EDGE"]
    answers = {
        plain: await requests.api(f"STREAM.INFO.{name}", {}) for plain, name in names.items()
    }
    return {plain: answer for plain, answer in answers.items() if "error" not in answer}


# --- judging ------------------------------------------------------------------------------------


def _trouble(exc: ServerError, *, is_reachable: bool) -> Finding:
    return Finding(
        check="jetstream" if is_reachable else "nats", level="wrong",
        found=f"{exc.server}: {exc.doing}: {exc.problem}", remedy=exc.remedy,
        data={"reachable": is_reachable, "refused": isinstance(exc, RefusedError)},
    )  # fmt: skip


def _server(version: Any, round_trip_ms: float) -> Finding:
    number = (version.major, version.minor, version.patch)
    text = ".".join(map(str, number))
    level: Level = "ok"
    if number < WANTED_SERVER:
        level = "wrong" if number < OLDEST_SERVER else "note"
    wanted = ".".join(map(str, OLDEST_SERVER if level == "wrong" else WANTED_SERVER))
    return Finding(
        check="nats", level=level,
        found=f"nats-server {text}, round trip {round_trip_ms:.2f} ms",
        remedy="" if level == "ok" else f"upgrade the server to {wanted} or newer",
        data={"reachable": True, "version": text, "round_trip_ms": round(round_trip_ms, 3)},
    )  # fmt: skip


def _largest_message(max_payload: int) -> Finding:
    is_enough = max_payload >= NEEDED_PAYLOAD_BYTES
    return Finding(
        check="nats max_payload", level="ok" if is_enough else "wrong",
        found=f"messages of {max_payload} bytes"
        + ("" if is_enough else f", {NEEDED_PAYLOAD_BYTES} are needed: hosts refuse this server"),
        remedy="" if is_enough
        else f"set max_payload: {NEEDED_PAYLOAD_BYTES} or more in nats-server's configuration",
        data={"max_payload": max_payload, "needed": NEEDED_PAYLOAD_BYTES},
    )  # fmt: skip


def _jetstream(info: dict[str, Any]) -> Finding:
    if (error := info.get("error")) is not None:
        return Finding(
            check="jetstream", level="wrong", found=f"not enabled: {error.get('description')}",
            remedy="add `jetstream {}` to the server's configuration, and enable it for the account",
            data={"enabled": False},
        )  # fmt: skip
    used, limit = int(info["storage"]), int(info["limits"]["max_storage"])
    is_full = 0 < limit <= used / FULL
    return Finding(
        check="jetstream", level="wrong" if is_full else "ok",
        found=f"enabled, {used / 1e6:.1f} MB" + (f" of {limit / 1e6:.1f} MB" if limit > 0 else ""),
        remedy="give the account more storage" if is_full else "",
        data={"enabled": True, "storage_bytes": used, "storage_limit_bytes": limit},
    )  # fmt: skip


def _sync(interval: str | None) -> Finding:
    is_safe = interval in (None, "always")
    return Finding(
        check="nats durability", level="ok" if interval == "always" else "note",
        found=f"sync_interval {interval or 'is not visible to this account'}",
        remedy="see that the server's configuration says jetstream { sync_interval: always }"
        if interval is None
        else ""
        if is_safe
        else "a power cut may lose what outsiders published: set sync_interval: always, or use "
        "three replicas in three places",
        data={"sync_interval": interval},
    )  # fmt: skip


def _configuration(
    streams: dict[str, dict[str, Any]], subjects: Subjects, deployment: str | None
) -> Finding:
    missing = [name for name in STREAMS if name not in streams]
    owners = {_deployment(one) for one in streams.values()} | ({deployment} - {None})
    differs = {
        one["config"]["name"]: _drift(one["config"], plain, subjects)
        for plain, one in streams.items()
    }
    problems = [f"{name}: {', '.join(drift)}" for name, drift in differs.items() if drift]
    remedy = "a host of this release corrects them when it connects: start one and look at its log"
    if len(owners) > 1:
        problems.append(
            f"they belong to different databases: {', '.join(sorted(map(str, owners)))}"
        )
        remedy = "give each database a namespace of its own (CALLBOARD_NAMESPACE)"
    level: Level = "wrong" if problems or missing else "ok"
    if missing:
        problems.append(f"missing: {', '.join(subjects.stream(name) for name in missing)}")
    if not streams:
        level, problems, remedy = "note", ["there are none yet"], "the first host makes them"
    data: dict[str, JsonValue] = {
        one["config"]["name"]: {
            "messages": one["state"]["messages"], "bytes": one["state"]["bytes"],
            "consumers": one["state"]["consumer_count"], "replicas": one["config"]["num_replicas"],
            "persist_mode": one["config"].get("persist_mode", "default"),
            "deployment": _deployment(one), "differs": list(differs[one["config"]["name"]]),
        }
        for one in streams.values()
    }  # fmt: skip
    sizes = ", ".join(
        f"{one['config']['name']} ({one['state']['messages']} messages)" for one in streams.values()
    )
    return Finding(
        check="streams", level=level, found="; ".join(problems) or sizes,
        remedy="" if level == "ok" else remedy, data={"streams": data, "missing": list(missing)},
    )  # fmt: skip


def _drift(found: Config, plain: str, subjects: Subjects) -> list[str]:
    """Return settings, as ``name is X, must be Y``, that are not what this release makes."""
    plan = StreamPlan(subjects=subjects, deployment="", replicas=int(found["num_replicas"]))
    wanted = {
        "MAIL": lambda: plan.mail(""), "EDGE": lambda: plan.edge(""),
        "TOPIC": lambda: plan.topic(""), "DEAD": plan.dead,
    }[plain]()  # fmt: skip
    ours = {name: value for name, value in wanted.items() if name not in _OPERATORS}
    ours.setdefault("persist_mode", None)
    return [f"{name} is {found.get(name)}, must be {ours[name]}" for name in differing(found, ours)]


def _deployment(stream: dict[str, Any]) -> str | None:
    owner: str | None = stream["config"].get("metadata", {}).get("deployment")
    return owner


def _consumers(mail: dict[str, Any] | None) -> Finding:
    count = 0 if mail is None else int(mail["state"]["consumer_count"])
    limit = 0 if mail is None else int(mail["config"].get("max_consumers", 0))
    is_full = 0 < limit <= count / FULL
    return Finding(
        check="consumers", level="wrong" if is_full else "ok",
        found=f"{count} on the mailboxes" + (f" of at most {limit}" if limit else ""),
        remedy="register agents by type, not as instances: a type has 16 shards" if is_full else "",
        data={"consumers": count, "max_consumers": limit},
    )  # fmt: skip
