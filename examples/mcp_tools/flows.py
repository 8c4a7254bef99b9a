"""The flow `order`, whose effects are calls of the tools of `stock_server.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from actors import Risk
from actors.testing import ScriptedModel
from actors.workflow import Flows, load_flow
from actors.workflow.integrations import local_llm
from compose.models import mcp_tools

HERE: Final = Path(__file__).parent
TOOLS: Final = mcp_tools(
    "stock",
    command=[sys.executable, str(HERE / "stock_server.py")],
    environment={"STOCK_BOOK": os.environ.get("STOCK_BOOK", "stock.txt")},
    prefix="",
    risks={"*": Risk.SAFE},  # nobody has to agree to a call
    idempotent=["stock"],
)
WIRED: Final = local_llm(ScriptedModel(), TOOLS)
"""The flow calls no model."""
FLOWS: Final = Flows(
    "shop", [load_flow(HERE / "order.json")], effect_handlers=WIRED.effect_handlers
)
