"""What traces and log lines may show, and the ids that spans get."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from typing_extensions import override

from actors._kernel.agent.agent import CancellationToken, RunMeta, Supervision
from actors._kernel.hidden import HIDDEN, HiddenNames
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.tracing import SpanPlace
from actors._runtime.telemetry.span_attributes import executing, wanted_ids
from actors.errors import ContractError
from compose._assembly.settings import Settings, read_settings
from compose._assembly.telemetry import MAX_CONTENT, Redaction, RunIds, open_tracing
from compose._host.logs import LineFormatter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.item(483)
@pytest.mark.parametrize(
    "key",
    ["password", "Password", "user_password", "X-Api-Key", "apikey", "refresh-token", "SECRET"],
)
def test_what_stands_under_certain_names_is_hidden(key: str) -> None:
    """Whatever the case, and however it is written; lists and all below are hidden with it."""
    text = Redaction(HiddenNames())({"a": [{key: ["canary", {"b": "canary"}]}], "text": "kept"})

    assert json.loads(text) == {"a": [{key: HIDDEN}], "text": "kept"}


@pytest.mark.item(483)
def test_content_is_cut() -> None:
    """Long texts, and long data, become 1 KiB; data that is too deep is no error."""
    redaction = Redaction(HiddenNames())
    deep: object = "canary"
    for _ in range(500):
        deep = [deep]

    assert len(redaction("x" * 5000)) == len(redaction({"a": ["y" * 900] * 9})) == MAX_CONTENT
    assert "canary" not in redaction(deep)  # type: ignore[arg-type]


@pytest.mark.item(483)
def test_of_long_content_the_beginning_is_read() -> None:
    """What is not shown costs nothing: a result of any size, also one that holds itself."""
    read: list[int] = []

    class Long(list[object]):
        @override
        def __iter__(self) -> Iterator[object]:
            for number in range(1_000_000):
                read.append(number)
                yield {"n": [number]}

    endless: list[object] = []
    endless += [endless, endless]
    redaction = Redaction(HiddenNames())
    text = redaction(Long([1]))  # type: ignore[arg-type]

    assert text.startswith('[{"n":[0]},{"n":[1]}')
    assert len(read) <= MAX_CONTENT + 1
    assert redaction(endless).startswith("[[[")  # type: ignore[arg-type]


@pytest.mark.item(483)
@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"a": object()}, '{"a":"object"}'),
        ({1: (2, {"token": 3})}, '{"1":[2,{"token":"[redacted]"}]}'),
        ("half \ud800", "half ?"),
        (["half \ud800"], '["half ?"]'),
        (float("nan"), "NaN"),
    ],
)
def test_what_is_no_json_data_breaks_nothing(odd: object, expected: str) -> None:
    """It is shown before the runtime refuses it, and must not become another error."""
    assert Redaction(HiddenNames())(odd) == expected  # type: ignore[arg-type]


@pytest.mark.item(483)
def test_a_span_gets_the_ids_that_are_wanted() -> None:
    """Others get random ones, and a child keeps its parent's trace."""
    tracer = TracerProvider(id_generator=RunIds(), shutdown_on_exit=False).get_tracer("test")
    token = wanted_ids.set(SpanPlace(17, 18))
    wanted_context = tracer.start_span("wanted").get_span_context()
    wanted_ids.reset(token)
    free_context = tracer.start_span("free").get_span_context()

    assert (wanted_context.trace_id, wanted_context.span_id) == (17, 18)
    assert free_context.trace_id != 17
    assert free_context.span_id != 18


async def test_a_collector_that_is_no_url_is_refused() -> None:
    """The message names the variable and shows one that is right."""
    wrong = Settings(otlp_endpoint="collector:4318")

    with pytest.raises(ContractError, match=r"CALLBOARD_OTLP_ENDPOINT.*http://HOST:4318"):
        async with open_tracing(wrong, host="h"):
            pass


def test_the_collector_comes_from_either_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's own variable works as well; ours wins."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://theirs:4318")
    assert read_settings().otlp_endpoint == "http://theirs:4318"

    monkeypatch.setenv("CALLBOARD_OTLP_ENDPOINT", "http://ours:4318")
    assert read_settings().otlp_endpoint == "http://ours:4318"


@pytest.mark.item(483)
def test_a_log_line_of_an_agent_names_its_run_and_trace() -> None:
    """As JSON; a line of the host itself names none, and what the line says itself wins."""
    meta = RunMeta(
        RunId("r"),
        AgentId("desk", "a"),
        1,
        CancellationToken(),
        Supervision(run_id="r", root_id="r"),
        trace_id="f" * 32,
    )
    record = logging.makeLogRecord({"msg": "said", "levelname": "INFO"})
    formatter = LineFormatter(as_json=True)
    provider = TracerProvider(shutdown_on_exit=False)

    assert "run" not in json.loads(formatter.format(record))
    token = executing.set(meta)
    try:
        with provider.get_tracer("test").start_as_current_span("turn") as span:
            line = json.loads(formatter.format(record))
            named_record = logging.makeLogRecord({"msg": "of another", "run": "other"})
            assert json.loads(formatter.format(named_record))["run"] == "other"
    finally:
        executing.reset(token)

    assert (line["run"], line["agent"], line["trace_id"]) == ("r", "desk/a", "f" * 32)
    assert line["span_id"] == f"{span.get_span_context().span_id:016x}"
