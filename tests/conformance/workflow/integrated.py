"""Models and tools of graphs under test, and a run of one effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors._kernel.agent.tools import Risk, Tool
from tests.conformance.workflow.stores import one_effect

if TYPE_CHECKING:
    from actors._workflow.integrations import Integration
    from actors.workflow import EffectType, RunState
    from tests.conformance.workflow.stores import Stores

CALLS = [
    {"name": "pay", "arguments": {"order": 7}, "call_id": "c1"},
    {"name": "look", "arguments": {}, "call_id": "c2"},
]
integrations: list[Integration] = []


def noted(integration: Integration) -> Integration:
    """Return an integration that is closed after the test."""
    integrations.append(integration)
    return integration


class Till:
    """Tools that count payments."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    async def pay(self, order: int) -> str:
        """Pay an order."""
        self.paid.append(order)
        return f"paid {order}"

    async def look(self) -> dict[str, int]:
        """Return a text."""
        return {"paid": len(self.paid)}

    def tools(self) -> list[Tool]:
        """Return the tools: one of them is risky."""
        return [
            Tool("pay", "Pays.", self.pay, risk=Risk.HIGH),
            Tool("look", "Looks.", self.look, idempotent=True),
        ]


def played(
    stores: Stores, integration: Integration, kind: EffectType, payload: dict[str, Any]
) -> RunState:
    """Return a run of one effect, ticked once."""
    spec = one_effect(kind, payload)
    rt = stores.runtime(effect_handlers=noted(integration).blocking_handlers)
    return rt.tick(spec, rt.start(spec, session_id="s"))
