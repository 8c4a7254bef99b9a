"""A conversation that is longer than its model's window, and the receipt of each call. See README.md."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from actors import ContextConfig, GenerationOptions, Runtime, StoreHistory, SummarizationCompaction
from actors import TokenBudgetComposedStrategy as Budget
from actors.agents import ReActAgent
from actors.testing import ScriptedModel
from compose.models import local

if TYPE_CHECKING:
    from actors import LLMClient

SMALL = GenerationOptions(temperature=0.0, max_tokens=12)


def receipt_line(call: dict[str, Any]) -> str:
    """Return the receipt of a call, in words."""
    receipt = call["receipt"]
    made = [f"{s['strategy']} dropped {s['dropped']}, wrote {s['added']}" for s in receipt["steps"]]
    size = f"window {receipt['turns']} turns, {receipt['tokens']} tokens; cut {receipt['cut']}"
    return "; ".join([f"  {size}", *made])


async def talk(runtime: Runtime, model: LLMClient, turns: int) -> None:
    """Say so many things in one conversation. Beyond 200 tokens a summary replaces old turns."""
    window = Budget([SummarizationCompaction(model, 60, 60)], 200, target_tokens=140)
    context = ContextConfig(StoreHistory(), window)
    guest = ReActAgent("guest", model=model, context=context, options=SMALL)
    await runtime.register(guest)
    for n in range(1, turns + 1):
        run = await runtime.submit(guest.id, f"Day {n}: we sailed to island {n} and had fish soup.")
        print(f"{n}: {await runtime.result(run)}")
        async for entry in runtime.entries(run):
            if entry.kind == "llm.call" and entry.payload.get("receipt"):
                print(receipt_line(dict(entry.payload)))
    report = await runtime.window(guest.id)
    parts = ", ".join(f"{part.name} {part.count} ({part.tokens} tokens)" for part in report.parts)
    print(f"{report.turns} turns are kept; the next window: {parts}")


async def main() -> None:
    """Read the options and talk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=14)
    parser.add_argument("--scripted", action="store_true", help="a model that computes nothing")
    options = parser.parse_args()
    scripted = ScriptedModel(otherwise="A fine day.")
    model = scripted if options.scripted else local(context_window=1_024, threads=1)
    async with Runtime() as runtime:
        await talk(runtime, model, options.turns)


if __name__ == "__main__":
    asyncio.run(main())
