"""Checks of Redis, and of the bucket or folder for artifacts' bytes.

Both are optional, so only a named server or place that does not answer is wrong.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from actors.errors import ActorsError
from compose._assembly.runtime import artifact_bytes
from compose._diagnosis.finding import Finding, away, judge

ANSWER_S: Final = 2.0
ARTIFACTS_ANSWER_S: Final = 10.0

_REMEDY: Final = (
    "start it or correct CALLBOARD_REDIS_URL; until then runs continue, but a crash just "
    "before a commit may leave more effects in doubt"
)
_ARTIFACTS_REMEDY: Final = (
    "correct CALLBOARD_ARTIFACTS or the keys of the bucket; until then artifacts are neither "
    "stored nor read"
)


async def diagnose_redis(url: str) -> list[Finding]:
    """Return the findings, the most important first.

    Raises:
        RedisUrlError: The URL is malformed.
    """
    # Imported here, because a deployment with a place for artifacts may have no Redis and no driver of it.
    from redis.asyncio import Redis  # noqa: PLC0415
    from redis.exceptions import RedisError  # noqa: PLC0415

    from persistence._redis.client import address  # noqa: PLC0415

    where = address(url)
    client: Any = Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S)
    try:
        info = await client.info()
        start = time.perf_counter()
        await client.ping()
        ping_ms = (time.perf_counter() - start) * 1000
    except (RedisError, OSError) as exc:
        return [away("redis", where, exc, remedy=_REMEDY)]
    finally:
        await client.aclose()
    return [_server(info, ping_ms), _eviction(info), _persistence(info)]


async def diagnose_artifacts(location: str) -> list[Finding]:
    """Return a finding about the bucket or folder.

    The check writes nothing, so it does not find a missing permission to write.

    Args:
        location: URL of the bucket, or absolute path of the folder, as in CALLBOARD_ARTIFACTS.
    """
    where = location.partition("?")[0]
    try:
        store = artifact_bytes(location)
        assert store is not None
        if _is_folder_to_be(Path(location)):
            finding = judge(
                "artifacts",
                f"{where} does not exist",
                {"reachable": False},
                note=True,
                remedy="mount the folder that the hosts share; a new folder is created at its first use",
            )
            return [finding]
        async with asyncio.timeout(ARTIFACTS_ANSWER_S):
            await store.probe()
    except TimeoutError:
        problem = f"no answer within {ARTIFACTS_ANSWER_S:g} s"
        return [away("artifacts", where, problem, remedy=_ARTIFACTS_REMEDY)]
    except ActorsError as exc:
        return [away("artifacts", where, exc, remedy=_ARTIFACTS_REMEDY)]
    return [judge("artifacts", f"{where} answers", {"reachable": True})]


def _server(info: dict[str, Any], ping_ms: float) -> Finding:
    is_valkey = "valkey_version" in info
    name = "Valkey" if is_valkey else "Redis"
    version = str(info["valkey_version" if is_valkey else "redis_version"])
    return judge(
        "redis",
        f"{name} {version}, PING {ping_ms:.2f} ms",
        {"reachable": True, "product": name, "version": version, "ping_ms": round(ping_ms, 3)},
    )


def _eviction(info: dict[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "unknown"))
    return judge(
        "redis eviction",
        f"maxmemory-policy {policy}",
        {"maxmemory_policy": policy, "maxmemory_bytes": int(info.get("maxmemory", 0))},
        note=policy != "noeviction",
        remedy="set maxmemory-policy noeviction: an evicted result may leave an effect in doubt "
        "after a crash",
    )


def _persistence(info: dict[str, Any]) -> Finding:
    is_on = bool(info.get("aof_enabled"))
    text = f"appendonly {'yes' if is_on else 'no'}"
    remedy = "set appendonly yes: a restart of Redis then loses no results"
    return judge("redis persistence", text, {"appendonly": is_on}, note=not is_on, remedy=remedy)


def _is_folder_to_be(path: Path) -> bool:
    return path.is_absolute() and not path.exists()
