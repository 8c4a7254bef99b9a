"""The JSON Schema of events in `docs/session-events.schema.json`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from actors._sessions.events import EVENTS, events_schema
from actors.sessions import EVENT_TYPES
from tests.unit.documents import ROOT

FILE = ROOT / "docs" / "session-events.schema.json"
MAKE = "import json; from actors.sessions import events; print(json.dumps(events.events_schema(), indent=2))"
EVENT = {
    "session_id": "s",
    "run_id": "r",
    "agent_id": "session/s",
    "at": "2026-01-01T00:00:00Z",
    "type": "text_delta",
    "payload": {"text": "a", "attempt": 1, "position": "0"},
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The file's schema."""
    document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return document


@pytest.mark.item(343)
def test_the_file_is_the_schema_of_the_events(schema: dict[str, Any]) -> None:
    """Else write it again: the output of `MAKE`."""
    assert schema == events_schema(), f"python -c '{MAKE}' > {FILE.name}"


@pytest.mark.item(343)
def test_each_type_has_its_payload_described(schema: dict[str, Any]) -> None:
    """A sentence about the event and one about its payload, whose fields are all named."""
    kinds = {kind: ref.split("/")[-1] for kind, ref in schema["discriminator"]["mapping"].items()}
    assert kinds.keys() == {*EVENT_TYPES}
    for kind, name in kinds.items():
        event = schema["$defs"][name]
        payload = schema["$defs"][event["properties"]["payload"]["$ref"].split("/")[-1]]
        assert event["properties"]["type"]["const"] == kind
        assert event["description"], kind
        assert payload["description"], kind
        assert (event["additionalProperties"], payload["additionalProperties"]) == (False, False)
        assert {"type", "payload", "run_id", "session_id", "agent_id", "at"} <= {*event["required"]}


@pytest.mark.item(343)
@pytest.mark.parametrize(
    "change",
    [
        {"type": "response.output_text.delta"},
        {"payload": {"text": "a", "attempt": 1, "position": "0", "raw": {}}},
        {"provider": {}},
    ],
)
def test_a_type_or_field_of_a_provider_is_no_event(change: dict[str, Any]) -> None:
    """The adapter that the schema is made of refuses what is not in the closed list."""
    EVENTS.validate_python(EVENT)
    with pytest.raises(ValidationError):
        EVENTS.validate_python({**EVENT, **change})
