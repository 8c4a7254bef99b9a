"""The Python service of `examples/outside`, and its parts in docs/clients.md."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from compose import Settings
from compose._assembly.runtime import build_runtime
from examples.outside.agents import AGENTS
from tests.unit.documents import ROOT, blocks

if TYPE_CHECKING:
    from tests.harness.servers import TestNats, TestPostgres

SERVICE = ROOT / "examples" / "outside" / "service.py"


async def test_the_service_of_the_examples_works_as_documented(
    nats_server: TestNats, postgres_server: TestPostgres, schema: str, namespace: str
) -> None:
    """As a separate program it asks, watches, sends, publishes, and gets a time-out."""
    settings = Settings(db_schema=schema, namespace=namespace, suspend_after=0.05)
    building = build_runtime(nats_server.url, postgres_server.url, None, settings=settings)
    async with building as runtime, asyncio.timeout(60):
        for type_, factory in AGENTS.items():
            await runtime.register_type(type_, factory)
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SERVICE),
            nats_server.url,
            namespace,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await program.communicate()

    assert (program.returncode, err.decode()) == (0, "")
    assert out.decode().splitlines() == [
        "answer: {'answer': 'HELLO AGENTS', 'source': 'shelf 12'}",
        "said live: ONE TWO THREE",
        "result: COMPLETED {'answer': 'ONE TWO THREE', 'source': 'shelf 13'}",
        "sent: mail-1",
        "late: the run has not ended within 2 s; it goes on",
    ]


def test_the_document_shows_the_service() -> None:
    """Each Python block of docs/clients.md is a part of the tested program."""
    program = SERVICE.read_text(encoding="utf-8")
    code_blocks = blocks("docs/clients.md", "python")
    lines = {line.strip() for line in program.splitlines()}
    strange = [
        line for block in code_blocks for line in block.splitlines() if line.strip() not in lines
    ]

    assert code_blocks
    assert strange == []
