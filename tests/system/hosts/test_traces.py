"""The trace of a conversation over two host processes and a kill, as a trace backend receives it."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

from actors._runtime.loop.tasks import TaskScope
from tests.system.agents import executed
from tests.system.traced import CANARY, HERE
from tests.system.waiting import until, until_executing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from tests.harness.rawnats import RawNats
    from tests.system.processes import Hosts

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

TRACE, CALLER = "c" * 32, "d" * 16


class Received:
    """The received spans, and the receiver's address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []

    def spans_named(self, name: str) -> list[Span]:
        """Return the spans whose name is this one, or starts with it and a blank."""
        return [s for s in self.spans if s.name == name or s.name.startswith(f"{name} ")]


@asynccontextmanager
async def receiving() -> AsyncIterator[Received]:
    """Run a real OTLP receiver inside the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    backend = Received(f"http://127.0.0.1:{port}")
    settings = OtelTapHttpProtobufReceiverSettings(http_port=port)
    async with OtelTapHttpProtobufReceiver(settings) as receiver, TaskScope() as tasks:

        async def keep() -> None:
            async for span in receiver.stream_traces():
                backend.spans.append(span)

        tasks.start(keep(), name="spans")
        yield backend


def attribute_of(span: Span, key: str) -> str:
    """Return an attribute of a span, or None."""
    return next(
        (attribute.value.string_value for attribute in span.attributes if attribute.key == key), ""
    )


@pytest.mark.costly
@pytest.mark.item(483)
async def test_a_conversation_over_two_hosts_and_a_kill_is_one_trace(
    fleet: Hosts, outsider: RawNats, namespace: str, tmp_path: Path
) -> None:
    """The external caller is its parent; no attribute, event, link or status has content."""
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    job = {"ledger": str(ledger), "gate": str(gate), "text": CANARY}
    async with receiving() as backend:
        fleet.more["otlp_endpoint"] = backend.url
        await fleet.serving(f"{HERE}:RIGHT")
        left = await fleet.serving(f"{HERE}:LEFT")
        await outsider.publish(
            f"{namespace}.agent.v1.default.lead.a.ext.crm",
            json.dumps(job).encode(),
            headers={"traceparent": f"00-{TRACE}-{CALLER}-01"},
        )
        await until_executing(ledger, 1)
        # Spans that a killed process had not exported are lost: let it export them.
        await until(lambda: bool(backend.spans_named("join")), "spans of the killed host")
        left.send(signal.SIGKILL)
        await fleet.serving(f"{HERE}:LEFT")
        await until(lambda: len(executed(ledger)) == 2, "the step on another host")
        gate.touch()
        await until(lambda: bool(backend.spans_named("invoke_agent lead")), "the run's root span")
        await until(lambda: len(backend.spans_named("invoke_agent")) == 3, "all root spans")
        spans = list(backend.spans)

    assert {span.trace_id.hex() for span in spans} == {TRACE}
    [root] = [span for span in spans if span.name == "invoke_agent lead"]
    assert root.parent_span_id.hex() == CALLER
    for name in ("invoke_agent helper", "invoke_agent kid"):
        [other] = [span for span in spans if span.name == name]
        assert other.parent_span_id == root.span_id
    turns = [span for span in spans if span.name == "runtime.turn"]
    of_lead = [span for span in turns if span.parent_span_id == root.span_id]
    assert {"lost", "completed"} <= {attribute_of(span, "callboard.turn.end") for span in of_lead}
    assert len({attribute_of(span, "callboard.host") for span in turns} - {""}) >= 2
    ids = {span.span_id for span in turns}
    for name in ("chat scripted-1", "execute_tool look_up", "ask", "spawn", "join", "step hold"):
        matches = [s for s in spans if s.name == name or s.name.startswith(f"{name} ")]
        assert matches, name
        assert {span.parent_span_id for span in matches} <= ids
    recovered = [s for s in of_lead if attribute_of(s, "callboard.turn.reason") == "recovered"]
    assert {link.span_id for span in recovered for link in span.links} <= ids
    assert CANARY.encode() not in b"".join(span.SerializeToString() for span in spans)
