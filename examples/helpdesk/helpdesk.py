"""A helpdesk in sessions: one agent that answers, and one that asks two specialists first. See README.md.

Usage:
    callboard chat examples.helpdesk.helpdesk:app --data ./data      # talk to it
    python examples/helpdesk/helpdesk.py                             # in memory: it talks to itself
    python examples/helpdesk/helpdesk.py --data DIR                  # durable: again, it goes on
"""

from __future__ import annotations

import argparse
import asyncio
import re
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors import AgentId, ChatMessage, Risk, Runtime, Tool, ToolCall
from actors.agents import ReActAgent
from actors.context import turn_of
from actors.sessions import AgentRuntime, SessionAgent
from actors.testing import FunctionModel, ModelReply
from compose import build_local_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import ApprovalRequest, GenerationOptions, Message, RunContext

ORDERS = {
    "7": {"item": "kettle", "paid": 39.9, "parcel": "lost in Lyon"},
    "8": {"item": "lamp", "paid": 25.0, "parcel": "on its way, due on Friday"},
}
PAUSE_S = 0.02
"""The model is not in a hurry, so that its answers are seen as they come."""


async def invoice(order: str) -> str:
    """Return what was paid for an order."""
    known = ORDERS.get(order)
    return f"order {order}: {known['item']}, {known['paid']} paid" if known else "no such order"


async def parcel(order: str) -> str:
    """Return where an order is."""
    known = ORDERS.get(order)
    return f"order {order}: the parcel is {known['parcel']}" if known else "no such order"


async def refund(order: str, amount: float) -> str:
    """Stand in for the bank. A call is not repeated, and waits for a person first."""
    return f"{amount} refunded for order {order}"


INVOICE = Tool("invoice", "What was paid for an order.", invoice, idempotent=True)
PARCEL = Tool("parcel", "Where an order is.", parcel, idempotent=True)
REFUND = Tool("refund", "Give money back.", refund, risk=Risk.HIGH)


class Orchestrator(ReActAgent):
    """Asks both specialists at the same time, and answers with what they found."""

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Answer the run's message."""
        question = turn_of(inbox[0].payload)
        await ctx.history.append(question)  # a node at once, whatever becomes of the answer
        runs = [await ctx.spawn(name, question.text) for name in ("billing", "shipping")]
        found = [f"{run.agent_id.type}: {(await ctx.join(run)).output}" for run in runs]
        reply = await ctx.chat(ChatMessage.of("system", " ".join(found)))
        return reply.text


def specialist(agent_id: AgentId, tool: Tool) -> ReActAgent:
    """Return an agent that looks one thing up."""
    return ReActAgent(agent_id, model=MODEL, tools=[tool])


def scripted(messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
    """Stand in for a model: look an order up, refund one that is lost, and say so."""
    last = messages[-1]
    results = [block.text or "" for block in last.content if block.type == "tool_result"]
    asked = next((one.text for one in reversed(messages) if one.role == "user"), "")
    number = "".join(re.findall(r"\d+", asked)[:1])
    tools = [tool.name for tool in options.tools]
    if results:
        return slowly(f"{results[0][0].upper()}{results[0][1:]}.")
    if last.role == "system" and "lost" not in last.text:
        return slowly(f"I asked around. {last.text}")
    wants_refund = "refund" in asked or last.role == "system"
    if number in ORDERS and wants_refund and "refund" in tools:
        amount = ORDERS[number]["paid"]
        return call("refund", order=number, amount=amount)
    if number and tools:
        return call(tools[0], order=number)
    return slowly("Which order is it about? Give me its number.")


def slowly(text: str) -> ModelReply:
    """Return an answer that comes word by word."""
    pause = partial(asyncio.sleep, PAUSE_S)
    return ModelReply(text=text, before=pause, between=pause)


def call(tool: str, **arguments: Any) -> ModelReply:
    """Return the wish to call a tool."""
    return ModelReply(calls=[ToolCall(id=tool, name=tool, arguments=arguments)])


MODEL = FunctionModel(scripted, model="helpdesk")
MODES = {
    "normal": ReActAgent("desk", model=MODEL, tools=[PARCEL, INVOICE, REFUND]),
    "orchestrator": Orchestrator("desk", model=MODEL, tools=[REFUND]),
}
DESK = SessionAgent(AgentId("helpdesk", "main"), MODES)


async def app(runtime: Runtime) -> None:
    """Register the specialists and the sessions: for `callboard chat` and `callboard host`."""
    await runtime.register_type("billing", partial(specialist, tool=INVOICE))
    await runtime.register_type("shipping", partial(specialist, tool=PARCEL))
    await runtime.register_type(DESK.id.type, DESK.of_id)


async def agree(request: ApprovalRequest) -> bool:
    """Decide instead of a person."""
    print(f"  asked: {request.what} {request.args}")
    return True


async def say(desk: AgentRuntime, text: str, mode: str) -> None:
    """Say something, and print what happens."""
    run = await desk.start(text, session_id="demo", mode=mode)
    print(f"{mode}> {text}")
    async for event in run.events():
        payload: Any = event.payload
        if event.type == "child_started":
            print(f"  {payload['agent'].partition('/')[0]} is asked")
        elif event.type == "message" and payload["role"] == "assistant" and payload["text"]:
            print(f"desk: {payload['text']}")


async def main() -> None:
    """Read the options and talk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of durable servers; left out: memory")
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        opening = Runtime() if options.data is None else build_local_runtime(options.data)
        runtime = await stack.enter_async_context(opening)
        await app(runtime)
        sessions = AgentRuntime(runtime=runtime, app=DESK.id.type, on_approval=agree)
        desk = await stack.enter_async_context(sessions)
        await say(desk, "Where is order 8?", "normal")
        await say(desk, "What happened to order 7?", "orchestrator")
        print(f"the conversation has {len(await desk.path('demo'))} nodes")


if __name__ == "__main__":
    asyncio.run(main())
