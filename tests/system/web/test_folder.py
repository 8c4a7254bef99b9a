"""`callboard serve --data`: the servers of a folder, for a process with agents and one without."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.system.web.conversing import APP_NAME, SPEC, WORDS, client_of, done
from tests.system.web.test_streams import END, reading, text_of, until_end

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.processes import Hosts


@pytest.mark.costly
async def test_two_processes_share_the_servers_of_a_folder(hosts: Hosts, tmp_path: Path) -> None:
    """The first one runs them. The second one gets pieces of its answers over NATS."""
    data = "--data", str(tmp_path / "data")
    owner, url = await hosts.web(SPEC, *data)
    guest, other_url = await hosts.web("--no-agents", "--app", APP_NAME, *data)
    async with client_of(url) as first, client_of(other_url) as second:
        await done(await first.post("/v1/sessions", json={"session_id": "s"}))
        async with reading(second, "POST", "/v1/sessions/s/runs", json={"text": "long"}) as events:
            seen = await until_end(events)
    for process in (guest, owner):
        process.send(signal.SIGTERM)
        assert await process.exit_code() == 0

    assert seen[-1]["event"] == END
    assert text_of(seen) == "".join(WORDS)
