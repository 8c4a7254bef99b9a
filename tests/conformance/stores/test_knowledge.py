"""The bridge of MEMORY_KG_* over every `GraphStore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._workflow.integrations import GraphStoreKnowledge
from tests.conformance.stores.test_graphs import backend as backend  # noqa: PLC0414 - fixtures
from tests.conformance.stores.test_graphs import tenants as tenants  # noqa: PLC0414

if TYPE_CHECKING:
    from tests.conformance.stores.test_graphs import Tenants

FACTS: list[dict[str, Any]] = [
    {"subject": "Ann", "predicate": "works at", "object": "ACME", "confidence": 0.9},
    {"subject": "Bob", "predicate": "works at", "object": "acme"},
    {"subject": "Ann", "predicate": "likes", "object": "Tea"},
]


@pytest.mark.item(436)
async def test_facts_are_found_by_their_parts(tenants: Tenants) -> None:
    """Once each, also after a repeated assertion. A scope sees its own facts, and entities by their names."""
    bridge = GraphStoreKnowledge(tenants("acme"))
    ids = await bridge.assert_facts("session:s", FACTS)
    assert await bridge.assert_facts("session:s", FACTS) == ids
    await bridge.assert_facts("session:t", FACTS[:1])

    async def find_facts(**parts: object) -> list[str]:
        rows = await bridge.query_facts("session:s", {"limit": 100, **parts})
        return sorted(f"{row['subject']} {row['predicate']} {row['object']}" for row in rows)

    assert len({*ids}) == 3
    assert await find_facts() == ["Ann likes Tea", "Ann works at ACME", "Bob works at acme"]
    assert await find_facts(subject="ann ") == ["Ann likes Tea", "Ann works at ACME"]
    assert await find_facts(object="ACME") == ["Ann works at ACME", "Bob works at acme"]
    assert await find_facts(predicate="works at", subject="Bob") == ["Bob works at acme"]
    assert await find_facts(predicate="likes") == ["Ann likes Tea"]
    assert await find_facts(predicate="LIKES") == []
    (row,) = await bridge.query_facts("session:t", {"limit": 9})
    assert row["confidence"] == 0.9
    assert await bridge.query_facts("run:r", {"limit": 9}) == []
    candidates = await bridge.resolve("session:s", "acme", limit=5)
    assert [(candidate["label"], candidate["score"]) for candidate in candidates] == [("ACME", 1.0)]
    (near,) = await bridge.resolve("session:s", "te", limit=5)
    assert (near["label"], near["score"]) == ("Tea", 0.667)
