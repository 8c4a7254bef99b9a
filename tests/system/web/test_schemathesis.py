"""Requests made from the OpenAPI document: slow, and schemathesis is not among our dependencies."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.harness.slow import IS_SLOW
from tests.system.web.conversing import SPEC

if TYPE_CHECKING:
    from tests.system.processes import Hosts

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LEAST = 500


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not IS_SLOW, reason="a minute: CALLBOARD_TEST_SLOW=1")
@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="pip install schemathesis"
)
async def test_no_request_of_the_document_is_a_fault(fleet: Hosts) -> None:
    """At least 500, each answered with a status and a body that the document names."""
    _, url = await fleet.web(SPEC)
    phases = "--phases", "fuzzing,coverage", "--max-examples", "40", "--no-color"
    tool = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json"),
        *("--checks", CHECKS, *phases),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await tool.communicate()
    said = out.decode()
    found = re.search(r"(\d+) generated, (\d+) passed", said)

    assert tool.returncode == 0, said
    assert found is not None
    assert found[1] == found[2]
    assert int(found[1]) >= LEAST
