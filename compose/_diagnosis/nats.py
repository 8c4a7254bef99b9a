"""The checks of NATS: the server, its JetStream, and the streams of this deployment. They only read."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from typing import Any, Final, TypeAlias

from actors._kernel.json import JsonValue
from broker import JetStreamOffError, RefusedError, ServerError, Subjects
from broker._mail.streams import EXTERNAL, OPERATORS, Config, StreamPlan, differing
from broker._nats.client import ConnectOptions, NatsConnection
from broker._nats.permissions import HOST_INBOX
from broker._nats.requests import TURN_ON, Requests, connected
from broker._wire.headers import NEEDED_PAYLOAD_BYTES
from broker._wire.subjects import StreamName
from compose._diagnosis.finding import Finding, is_this_machine, judge

Data: TypeAlias = dict[str, JsonValue]

OLDEST_SERVER: Final = (2, 14, 5)
"""Oldest supported version. Message schedules and atomic batches of older versions have known errors."""
WANTED_SERVER: Final = (2, 15, 0)
"""Recommended version. Before it, streams sync one by one, and external clients can forge a stream's source."""
CONNECT_S: Final = 2.0
FULL: Final = 0.9
"""Ratio of used consumers or storage from which the check warns. Every shard of every host needs a consumer."""
STREAMS: Final[tuple[StreamName, ...]] = ("MAIL", "EDGE", "TOPIC", "DEAD")
_ROUND_TRIPS: Final = 5
_SETTINGS: Final = "$SYS.REQ.SERVER.PING.VARZ"
_HEALTH: Final = "$SYS.REQ.SERVER.PING.HEALTHZ"
# Settings that the operator may choose. The promises depend on the other settings.
_OPERATORS: Final = {"name", "num_replicas", "max_consumers", "metadata", *OPERATORS}


async def diagnose_nats(
    url: str | ConnectOptions, *, namespace: str = "", deployment: str | None = None
) -> list[Finding]:
    """Return the findings, the most important first.

    Args:
        url: URL of one server, or URLs of a cluster's servers, separated by commas; or options to connect.
        namespace: Prefix of the streams.
        deployment: Id of the database to which all streams must belong, or None if any one database may own
            them all.
    """
    subjects = Subjects(namespace)
    server = ConnectOptions(urls=tuple(url.split(","))) if isinstance(url, str) else url
    server = replace(server, name="callboard-doctor", connect_timeout_s=CONNECT_S)
    findings: list[Finding] = []
    try:
        async with connected(server, HOST_INBOX) as (requests, _):
            client = requests.client
            findings.append(_server(client.connected_server_version, await _round_trip_ms(client)))
            findings.append(_logins(client))
            findings.append(_largest_message(client.max_payload))
            info = await requests.api_or_raise("INFO", {})
            health = await _request_data(requests, "asking its health", _HEALTH)
            findings.append(_jetstream(info, health.get("error")))
            findings.append(_sync(await _sync_interval(requests)))
            streams = await _streams(requests, subjects)
            findings.append(_configuration(streams, subjects, deployment))
            findings.append(_consumers(streams.get("MAIL")))
    except ServerError as exc:
        findings.append(_trouble(exc, is_reachable=bool(findings)))
    return findings


async def _round_trip_ms(client: NatsConnection) -> float:
    seconds: list[float] = []
    for _ in range(_ROUND_TRIPS):
        start = time.perf_counter()
        await client.flush()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


async def _sync_interval(requests: Requests) -> str | None:
    """Return ``always`` or a span. None means that the account may not read the setting, which is usual."""
    settings = await _request_data(requests, "reading settings", _SETTINGS)
    config = settings.get("jetstream", {}).get("config", {})
    if config.get("sync_always"):
        return "always"
    nanoseconds = config.get("sync_interval")
    return None if nanoseconds is None else f"{nanoseconds / 1e9:g} s"


async def _request_data(requests: Requests, doing: str, subject: str) -> dict[str, Any]:
    """Return the data of the server's answer; empty if the account may not send the request."""
    try:
        answer = await requests.request(doing, subject, b"", limit_s=CONNECT_S)
    except ServerError:
        return {}
    data: dict[str, Any] = json.loads(answer.data).get("data", {})
    return data


async def _streams(requests: Requests, subjects: Subjects) -> dict[str, dict[str, Any]]:
    """Return the server's answers about the existing streams, by their names without the prefix."""
    query = {"subject": subjects.prefixed(EXTERNAL)}
    stream_names = (await requests.api_or_raise("STREAM.NAMES", query)).get("streams") or ()
    # EDGE has another name after it was created anew, so it is found by its subject.
    edge_names = [name for name in stream_names if name.startswith(subjects.stream("EDGE"))]
    full_names_by_name = {plain: subjects.stream(plain) for plain in STREAMS}
    if edge_names:
        full_names_by_name["EDGE"] = edge_names[0]
    else:
        del full_names_by_name["EDGE"]
    answers_by_name = {
        plain: await requests.api(f"STREAM.INFO.{name}", {})
        for plain, name in full_names_by_name.items()
    }
    return {plain: answer for plain, answer in answers_by_name.items() if "error" not in answer}


def _trouble(exc: ServerError, *, is_reachable: bool) -> Finding:
    if isinstance(exc, JetStreamOffError):
        off_data: Data = {"enabled": False}
        return judge("jetstream", exc.problem, off_data, wrong=True, remedy=exc.remedy)
    check = "jetstream" if is_reachable else "nats"
    text = f"{exc.server}: {exc.doing}: {exc.problem}"
    data: Data = {"reachable": is_reachable, "refused": isinstance(exc, RefusedError)}
    return judge(check, text, data, wrong=True, remedy=exc.remedy)


def _server(version: Any, round_trip_ms: float) -> Finding:
    number = (version.major, version.minor, version.patch)
    text = ".".join(map(str, number))
    is_wrong = number < OLDEST_SERVER
    target_version = ".".join(map(str, OLDEST_SERVER if is_wrong else WANTED_SERVER))
    return judge(
        "nats",
        f"nats-server {text}, round trip {round_trip_ms:.2f} ms",
        {"reachable": True, "version": text, "round_trip_ms": round(round_trip_ms, 3)},
        wrong=is_wrong,
        note=number < WANTED_SERVER,
        remedy=f"upgrade the server to {target_version} or newer",
    )


def _logins(client: NatsConnection) -> Finding:
    server, is_open = client.connected_url, client.admits_anybody
    is_here = server is not None and is_this_machine(server.hostname or "")
    return judge(
        "nats logins",
        "none: every client that reaches the server may do everything" if is_open else "needed",
        {"needed": not is_open},
        wrong=is_open and not is_here,
        note=is_open,
        remedy="give it accounts: callboard nats-config prints them",
    )


def _largest_message(max_payload: int) -> Finding:
    is_small = max_payload < NEEDED_PAYLOAD_BYTES
    problem = f", {NEEDED_PAYLOAD_BYTES} are needed: hosts refuse this server" if is_small else ""
    return judge(
        "nats max_payload",
        f"messages of {max_payload} bytes{problem}",
        {"max_payload": max_payload, "needed": NEEDED_PAYLOAD_BYTES},
        wrong=is_small,
        remedy=f"set max_payload: {NEEDED_PAYLOAD_BYTES} or more in nats-server's configuration",
    )


def _jetstream(info: dict[str, Any], sickness: str | None) -> Finding:
    if sickness is not None:
        data: Data = {"enabled": True, "problem": sickness}
        text = f"the server is not healthy: {sickness}"
        return judge("jetstream", text, data, wrong=True, remedy=TURN_ON)
    used_bytes, limit_bytes = int(info["storage"]), int(info["limits"]["max_storage"])
    limit_text = f" of {limit_bytes / 1e6:.1f} MB" if limit_bytes > 0 else ""
    return judge(
        "jetstream",
        f"enabled, {used_bytes / 1e6:.1f} MB{limit_text}",
        {"enabled": True, "storage_bytes": used_bytes, "storage_limit_bytes": limit_bytes},
        wrong=0 < limit_bytes <= used_bytes / FULL,
        remedy="give the account more storage",
    )


def _sync(interval: str | None) -> Finding:
    remedy = (
        "a power cut may lose messages of external clients: set sync_interval: always, or use "
        "three replicas at three sites"
    )
    if interval is None:
        remedy = "see that the server's configuration says jetstream { sync_interval: always }"
    return judge(
        "nats durability",
        f"sync_interval {interval or 'is not visible to this account'}",
        {"sync_interval": interval},
        note=interval != "always",
        remedy=remedy,
    )


def _configuration(
    streams: dict[str, dict[str, Any]], subjects: Subjects, deployment: str | None
) -> Finding:
    missing_streams = [name for name in STREAMS if name not in streams]
    owners = {_deployment(stream) for stream in streams.values()} | ({deployment} - {None})
    edge_name = streams["EDGE"]["config"]["name"] if "EDGE" in streams else ""
    reports_by_name: dict[str, Any] = {
        stream["config"]["name"]: _stream(
            stream, _drift(stream["config"], plain, subjects, edge_name)
        )
        for plain, stream in streams.items()
    }
    problems = [
        f"{name}: {', '.join(report['differs'])}"
        for name, report in reports_by_name.items()
        if report["differs"]
    ]
    remedy = "with the admin's login, `callboard migrate --streams` of this release corrects them"
    if len(owners) > 1:
        names = ", ".join(sorted(map(str, owners)))
        problems.append(f"they belong to different databases: {names}")
        remedy = "give each database a namespace of its own (CALLBOARD_NAMESPACE)"
    # No stream at all is no fault: the first host or `callboard migrate --streams` creates them.
    is_wrong = bool(streams and (problems or missing_streams))
    if missing_streams:
        problems.append(f"missing: {', '.join(subjects.stream(name) for name in missing_streams)}")
    if not problems:
        # Only an operator sets a limit of bytes.
        configs = [stream["config"] for stream in streams.values()]
        limits_by_name = {config["name"]: int(config.get("max_bytes", -1)) for config in configs}
        problems = [
            f"{name}: max_bytes is {limit}" for name, limit in limits_by_name.items() if limit > 0
        ]
        remedy = "none, if you set this limit: when it is reached, EDGE refuses messages and MAIL delays them"
    if not streams:
        problems = ["there are no streams yet"]
        remedy = "`callboard migrate --streams` creates them, or the first host, if it has the permission"
    sizes = ", ".join(
        f"{name} ({report['messages']} messages)" for name, report in reports_by_name.items()
    )
    return judge(
        "streams",
        "; ".join(problems) or sizes,
        {"streams": reports_by_name, "missing": list(missing_streams)},
        wrong=is_wrong,
        note=bool(problems),
        remedy=remedy,
    )


def _stream(answer: dict[str, Any], drift: list[str]) -> dict[str, Any]:
    config, state = answer["config"], answer["state"]
    return {
        "messages": state["messages"],
        "bytes": state["bytes"],
        "consumers": state["consumer_count"],
        "replicas": config["num_replicas"],
        "persist_mode": config.get("persist_mode", "default"),
        "deployment": _deployment(answer),
        "differs": drift,
    }


def _drift(config: Config, plain: str, subjects: Subjects, edge_name: str) -> list[str]:
    """Return a text ``name is X, must be Y`` for each setting that differs from this release's."""
    plan = StreamPlan(subjects=subjects, deployment="", replicas=int(config["num_replicas"]))
    planned_config = {
        "MAIL": lambda: plan.mail(edge_name),
        "EDGE": lambda: plan.edge(edge_name),
        "TOPIC": lambda: plan.topic(edge_name),
        "DEAD": plan.dead,
    }[plain]()
    checked_config = {
        name: value for name, value in planned_config.items() if name not in _OPERATORS
    }
    # A plan without this setting means synchronous writes, and `differing` compares only settings of the plan.
    checked_config.setdefault("persist_mode", None)
    return [
        f"{name} is {config.get(name)}, must be {checked_config[name]}"
        for name in differing(config, checked_config)
    ]


def _deployment(stream: dict[str, Any]) -> str | None:
    owner: str | None = stream["config"].get("metadata", {}).get("deployment")
    return owner


def _consumers(mail: dict[str, Any] | None) -> Finding:
    count = 0 if mail is None else int(mail["state"]["consumer_count"])
    limit = 0 if mail is None else int(mail["config"].get("max_consumers", 0))
    limit_text = f" of at most {limit}" if limit else ""
    return judge(
        "consumers",
        f"{count} on the mailboxes{limit_text}",
        {"consumers": count, "max_consumers": limit},
        wrong=0 < limit <= count / FULL,
        remedy="register agents by type, not as instances: a type has 16 shards; or give the account "
        "more consumers, and run `callboard migrate --streams`",
    )
