"""The embedded Valkey: it forgets nothing by itself, and can be told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.servers import wipe
from tests.integration.compose.stored import KINDS, redis_client

if TYPE_CHECKING:
    from tests.harness.servers import OwnRedis, TestRedis


@pytest.mark.parametrize(("durable", "fsync"), [(True, "everysec"), (False, "no")])
async def test_nothing_is_evicted_and_durable_means_a_second(
    own_redis: OwnRedis, fsync: str, *, durable: bool
) -> None:
    """The append-only file is on either way."""
    async with redis_client(own_redis(durable=durable).url) as client:
        config = await client.config_get("maxmemory-policy", "appendonly", "appendfsync")

    assert config == {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": fsync}


async def test_a_wiped_server_starts_with_nothing(own_redis: OwnRedis) -> None:
    """Its URL stays, its keys are gone."""
    server = own_redis()
    await KINDS["redis"].write(server.url, 3)
    server.kill()
    wipe(server)
    server.start()

    assert await KINDS["redis"].count(server.url) == 0


async def test_tests_share_a_server(redis_server: TestRedis) -> None:
    """It answers under the URL of the fixture."""
    async with redis_client(redis_server.url) as client:
        assert await client.ping()
