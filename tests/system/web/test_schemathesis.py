"""Requests generated from the OpenAPI document; with CALLBOARD_TEST_SLOW random ones, too."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.harness.slow import IS_SLOW
from tests.system.web.conversing import WITH_FLOWS

if TYPE_CHECKING:
    from tests.system.processes import Hosts

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LEAST = 500
PHASES = "fuzzing,coverage" if IS_SLOW else "coverage"
"""The requests of `coverage` are the same each time: a thousand in 5 s of CPU.

`fuzzing` takes 25 s more.
"""


@pytest.mark.costly
@pytest.mark.timeout(900)
async def test_no_request_of_the_document_causes_a_server_error(fleet: Hosts) -> None:
    """At least 500, each answered with a status and a body that the document has."""
    _, url = await fleet.web(WITH_FLOWS)
    phases = "--phases", PHASES, "--max-examples", "40", "--no-color"
    tool = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json"),
        *("--checks", CHECKS, *phases),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await tool.communicate()
    output = out.decode()
    match = re.search(r"(\d+) generated, (\d+) passed", output)

    assert tool.returncode == 0, output
    assert match is not None
    assert match[1] == match[2]
    assert int(match[1]) >= LEAST
