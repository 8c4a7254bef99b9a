"""Installed flows and artifacts of their runs on a real S3, with rows on PostgreSQL."""

from __future__ import annotations

import json
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from actors._kernel.runtime.ids import DEFAULT_TENANT, RunId
from actors._kernel.stores.flows import FLOWS_SCOPE
from actors._workflow.bundles import INSTALLED_APP, open_workflow_bundle
from actors._workflow.installed import InstalledFlows
from actors.workflow import EffectOutcome, EffectType, FlowRuns
from compose._assembly.runtime import artifact_bytes, build_postgres_runtime
from compose._assembly.settings import Settings
from compose.web import app
from persistence._objects.files import PART_BYTES
from tests.behaviour.web import WebClient
from tests.harness import servers
from tests.harness.proxy import FaultProxy
from tests.harness.slow import IS_SLOW
from tests.integration.persistence.hosts import sql
from tests.unit.workflow.test_bundles import files_of, zipped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._runtime import Runtime
    from actors.workflow import Effect, RunState
    from persistence.objects import S3Settings
    from tests.harness.servers import TestServer

pytestmark = [pytest.mark.postgres, pytest.mark.s3, pytest.mark.item(311, 469, 471)]
only_slow = pytest.mark.skipif(not IS_SLOW, reason="CALLBOARD_TEST_SLOW: the gate plays one on S3")
IN_ROWS: Final = "select count(*) from artifact_chunks"
OBJECTS: Final = "select upload from artifacts"
WRITES: Final[dict[str, Any]] = {
    "flow": 1,
    "id": "writes",
    "start": "w",
    "nodes": {
        "w": {
            "effect": "tool_calls",
            "with": {"tool_calls": [{"name": "write", "arguments": {"text": "${vars.text}"}}]},
            "into": "file",
            "next": "e",
        },
        "e": {"end": "${vars.file}"},
    },
}


@pytest.fixture
async def bucket(s3_server: TestServer, monkeypatch: pytest.MonkeyPatch) -> S3Settings:
    """A bucket of this test. Its keys are in the environment."""
    bucket = await servers.new_bucket(s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.access_key or "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret_key or "")
    return bucket


def place_of(bucket: S3Settings, endpoint: str | None = None) -> str:
    """Return the bucket as a setting names it."""
    at = quote(endpoint or bucket.endpoint or "")
    return f"s3://{bucket.bucket}/of/test?endpoint={at}"


def bundle(size: int) -> bytes:
    """Return a bundle with a random asset of this size."""
    files = {"flows/writes.json": json.dumps(WRITES).encode()}
    files["assets/large.bin"] = secrets.token_bytes(size)
    return zipped(
        files_of(
            files,
            bundle_id="writes",
            flows={"writes": "flows/writes.json"},
            entrypoints=[{"flow_id": "writes"}],
        )
    )


@asynccontextmanager
async def host(dsn: str, schema: str, location: str) -> AsyncIterator[tuple[Runtime, WebClient]]:
    """Yield a host of installed flows, whose tool writes artifacts, and its API."""
    settings = Settings(db_schema=schema, artifacts=location)
    async with build_postgres_runtime(dsn, settings=settings) as runtime:
        files = runtime.store.data.artifacts.of(DEFAULT_TENANT, "written")

        async def write(run: RunState, effect: Effect) -> EffectOutcome:
            text = effect.payload["tool_calls"][0]["arguments"]["text"]
            ref = await files.store(text.encode(), content_type="text/plain")
            await files.pin(ref, owner=run.run_id)
            return EffectOutcome.completed(ref.id)

        await InstalledFlows(effect_handlers={EffectType.TOOL_CALLS: write}).register(runtime)
        yield runtime, WebClient(app(runtime))


async def collected(runtime: Runtime) -> None:
    """Collect all that is not pinned."""
    while await runtime.store.data.artifacts.collect(grace_s=0.0):
        pass


@pytest.mark.costly
async def test_a_flow_is_installed_executed_and_removed_with_its_bytes_on_s3(
    postgres_dsn: str, schema: str, bucket: S3Settings
) -> None:
    """A host loads the bundle from there. The artifact of the run stays when the bundle is gone."""
    data, location = bundle(2 * PART_BYTES), place_of(bucket)
    async with (
        host(postgres_dsn, schema, location) as (runtime, web),
        host(postgres_dsn, schema, location) as (other, other_web),
    ):
        flow = await web.post("/v1/flows", data)
        run = await FlowRuns(other, INSTALLED_APP).start("writes@1", vars={"text": "a letter"})
        written = str(await other.result(RunId(run)))
        file = await other_web("GET", "/v1/flows/writes/bundle")
        names = {row[0] for row in await sql(postgres_dsn, schema, OBJECTS)}
        in_rows = await sql(postgres_dsn, schema, IN_ROWS)
        removal = await other_web("DELETE", "/v1/flows/writes@1")
        await collected(runtime)
        remaining_names = {row[0] for row in await sql(postgres_dsn, schema, OBJECTS)}
        files = runtime.store.data.artifacts.of(DEFAULT_TENANT, "written")
        content = await files.read(written, limit=100)

    assert flow["size_bytes"] == len(data)
    assert open_workflow_bundle(file.body).hash == flow["hash"]
    assert removal.status == 204
    assert content == b"a letter"
    assert (len(names), len(remaining_names), in_rows[0][0]) == (2, 1, 0)
    objects = artifact_bytes(location)
    assert objects is not None
    [removed_name] = names - remaining_names
    with pytest.raises(KeyError):
        await objects.read(removed_name.removeprefix("object:"), offset=0, limit=1)
    [stays] = remaining_names
    assert await objects.read(stays.removeprefix("object:"), offset=0, limit=8) == b"a letter"


@only_slow
async def test_an_install_over_a_network_that_fails_is_whole_or_absent(
    postgres_dsn: str, schema: str, bucket: S3Settings
) -> None:
    """A lost answer of the bucket leaves one object; without the bucket nothing is installed."""
    assert bucket.endpoint is not None
    data = bundle(3 * PART_BYTES)
    async with FaultProxy.to(bucket.endpoint) as proxy:
        location = place_of(bucket, proxy.through(bucket.endpoint))
        async with host(postgres_dsn, schema, location) as (runtime, web):
            loss = proxy.lose_response(request_has=b"PUT ", response_ends=b"")
            response = await web("POST", "/v1/flows", data)
            assert loss.happened.is_set()
            await proxy.__aexit__(None, None, None)
            away = await web("POST", "/v1/flows?version=2", json.dumps(WRITES).encode())
            rows = (await web.get("/v1/flows"))["installed"]
    async with host(postgres_dsn, schema, place_of(bucket)) as (runtime, web):
        again = await web("POST", "/v1/flows?version=2", json.dumps(WRITES).encode())
        files = runtime.store.data.artifacts.of(DEFAULT_TENANT, FLOWS_SCOPE)
        await collected(runtime)
        pins = await files.pins()

    assert response.status == 201
    assert (away.status, away.data["code"]) == (503, "unavailable")
    assert [row["flow"] for row in rows] == ["writes@1"]
    assert (again.status, len(pins)) == (201, 2)
