"""An API process during an outage of its database: its answers and its probes."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

from compose._web.identity.authentication import FRESH_S
from tests.integration.compose.commandline import Cli
from tests.system.hosts.test_host_http import ANY_PORT, get
from tests.system.waiting import until
from tests.system.web.conversing import APP_NAME, client_of

if TYPE_CHECKING:
    import httpx2
    import pytest

    from tests.harness.servers import OwnPostgres
    from tests.system.processes import Hosts


async def answer_of(client: httpx2.AsyncClient, path: str, token: str) -> tuple[int, str, str]:
    """Return status, code and Retry-After of an answer."""
    answer = await client.get(path, headers={"authorization": f"Bearer {token}"})
    return (
        answer.status_code,
        answer.json().get("code", ""),
        answer.headers.get("retry-after", ""),
    )


async def test_no_token_is_refused_during_an_outage_of_the_database(
    own_postgres: OwnPostgres, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests get 503 with Retry-After, with a valid token or an invalid one, and `/readyz` has the reason."""
    server = await asyncio.to_thread(own_postgres, durable=True)
    words = "--no-agents", "--app", APP_NAME, "--auth", "tokens"
    process, url = await hosts.web(*words, url=server.url, http=ANY_PORT, outage_s=0.5)
    cli = Cli(server.url, hosts.schema, capsys)
    token = (await cli.call("tokens", "create", "ada", "--json")).data["token"]

    async def is_ready() -> bool:
        return (await get(process, "/readyz"))[0] == 200

    async with client_of(url) as client:
        await until(is_ready, "ready")
        _, metrics = await get(process, "/metrics")
        before = await answer_of(client, "/v1/sessions", token)
        await asyncio.to_thread(server.kill)
        remembered = await answer_of(client, "/v1/apps", token)
        async with asyncio.timeout(4 * FRESH_S):
            while (answer_to_known := await answer_of(client, "/v1/apps", token))[0] == 200:
                pass
        unknown = await answer_of(client, "/v1/apps", "cb_unknown")
        code, body = await get(process, "/readyz")
        alive, _ = await get(process, "/healthz")
        await asyncio.to_thread(server.start)
        await until(is_ready, "ready again")
        after = await answer_of(client, "/v1/sessions", token)
        bad = await answer_of(client, "/v1/sessions", "cb_unknown")
    process.send(signal.SIGTERM)

    assert before == after == (200, "", "")
    assert bad == (401, "bad_token", "")
    assert answer_to_known == unknown == (503, "unavailable", "1")
    assert remembered in ((200, "", ""), answer_to_known), "it is known for two seconds"
    assert [reason["check"] for reason in json.loads(body)["reasons"]] == ["postgres"]
    assert (code, alive) == (503, 200)
    assert "\ncallboard_host_serving 0.0" in metrics, "no agents are served here"
    assert "callboard_host_lease_good" not in metrics
    assert await process.exit_code() == 0
