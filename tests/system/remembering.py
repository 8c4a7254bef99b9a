"""An agent with memory whose first embedding waits for a file, without blocking the event loop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compose.demo.desk import append_line
from tests.system.agents import executed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext

HERE: Final = f"{__name__}:TYPES"
BEGAN, LEFT = 0, 1
"""Numbers in the ledger: an embedding starts, and ends."""
KEY: Final = "host"
FACTS: Final = (("metric", "units"), ("miles", "units"), ("Oslo", None), ("gone", "old"))
QUERY: Final = "anything"


class Waiting:
    """An `EmbeddingClient` whose caller continues in the same turn of the event loop."""

    def __init__(self) -> None:
        self.job: Any = {}

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        ledger, gate = Path(self.job["ledger"]), Path(self.job["gate"])
        is_first = not executed(ledger)
        append_line(str(ledger), f"{BEGAN} {os.getpid()}")
        while is_first and not gate.exists():  # noqa: ASYNC240
            time.sleep(0.01)  # noqa: ASYNC251 - see the class
        append_line(str(ledger), f"{LEFT} {os.getpid()}")
        return [(float(len(text)), 1.0) for text in texts]


class Rememberer:
    """Stores the number of its process."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id, self.embedder = agent_id, Waiting()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the id of the memory."""
        self.embedder.job = inbox[0].payload
        pid = await ctx.step("pid", _pid)
        await ctx.memory.block(
            "none"
        )  # tables exist, a connection is open: the write is one statement
        return await ctx.memory.remember(f"kept by {pid}", key=KEY)


class Noting:
    """An `EmbeddingClient` that records each text in a ledger."""

    def __init__(self) -> None:
        self.ledger = ""

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        for text in texts:
            append_line(self.ledger, text)
        return [(float(len(text)), 1.0) for text in texts]


class Keeper:
    """Stores versions, blocks and a text that it deletes, one after the other."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id, self.embedder = agent_id, Noting()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[str]:
        """Return what it finds at the end."""
        self.embedder.ledger = str(inbox[0].payload)
        memory = ctx.memory
        for text, key in FACTS:
            await memory.remember(text, key=key)
        await memory.forget("old")
        block = await memory.block("persona")
        block = await memory.set_block("persona", "curt", expected=block.version)
        await memory.set_block("persona", "kind", expected=block.version)
        return sorted(hit.text for hit in await memory.recall(QUERY))


def _pid() -> int:
    return os.getpid()


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {"keeper": Keeper, "rememberer": Rememberer}
