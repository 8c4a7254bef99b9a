"""The modules that a host loads before it serves: counted, because time depends on the machine.

A library that only some hosts need is imported where it is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.system.processes import ROOT

if TYPE_CHECKING:
    from tests.harness.servers import TestNats, TestRedis

MODULES: Final = {"": 464, "nats": 530, "nats redis": 653}
"""Maximum number beyond Python's own. Imports take most of a cold start."""
PYTHONS_OWN: Final = sys.stdlib_module_names | {"__main__", "tests"}
NOT_NEEDED: Final = {
    "actors._kernel.workflow",
    "actors._inmemory.runs.store",  # rows are in PostgreSQL
    "actors._inmemory.boards",
    "actors._workflow",
    "actors.workflow",
    "cryptography",
    "compose._embedded",  # URLs name the servers
    "docstring_parser",
    "compose._web",
    "email.mime",
    "http.client",
    "httptools",
    "jwt",
    "opentelemetry.exporter",
    "opentelemetry.sdk",  # no collector is named
    "persistence._files",
    "persistence._sqlite",
    "prometheus_client",  # no address for metrics is named
    "psutil",
    "rich",  # a host prints no tables
    "starlette",
    "uvicorn",
    "uvloop",
    "watchfiles",
    "yaml",
}


@pytest.mark.nats
@pytest.mark.redis
@pytest.mark.parametrize("beside", MODULES)
def test_a_host_loads_only_modules_that_it_needs(  # noqa: PLR0917 - fixtures
    postgres_dsn: str,
    schema: str,
    namespace: str,
    nats_server: TestNats,
    redis_server: TestRedis,
    beside: str,
) -> None:
    """Libraries of commands, of other modes, and of settings that are not used are not loaded."""
    urls = {"nats": nats_server.url, "redis": redis_server.url}
    env = {
        "CALLBOARD_POSTGRES_URL": postgres_dsn,
        "CALLBOARD_SCHEMA": schema,
        "CALLBOARD_NAMESPACE": namespace,
        **{f"CALLBOARD_{kind.upper()}_URL": urls[kind] for kind in beside.split()},
    }
    with subprocess.Popen(
        [sys.executable, "-m", "compose", "host", "tests.system.loaded:app"],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
    ) as host:
        assert host.stdout is not None
        loaded = json.loads(host.stdout.readline() or "[]")
        host.terminate()
        host.stdout.read()

    assert host.returncode == 0
    assert "persistence._postgres.store" in loaded
    if "redis" not in beside:  # its library loads the installed ones
        assert [
            module
            for module in loaded
            if any(f"{module}.".startswith(f"{no}.") for no in NOT_NEEDED)
        ] == []
    assert ("nats" in loaded) is ("nats" in beside)
    assert ("redis" in loaded) is ("redis" in beside)
    ours_and_libraries = {
        module for module in loaded if module.partition(".")[0] not in PYTHONS_OWN
    }
    assert len(ours_and_libraries) <= MODULES[beside]
