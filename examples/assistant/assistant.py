"""An assistant whose booking waits for a person, that remembers over processes, and forgets on demand.

Usage:
    python examples/assistant/assistant.py                # in memory, with a model that needs no key
    python examples/assistant/assistant.py --data DIR     # durable: the same order again is the same run
    python examples/assistant/assistant.py --data DIR --order 2 --ask   # you decide: kill it, run it again
    python examples/assistant/assistant.py --mcp          # the calendar is an MCP server
    python examples/assistant/assistant.py --erase        # at the end what was kept of the user goes
    python examples/assistant/assistant.py --data DIR --model anthropic:claude-sonnet-4-5
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actors import Message, Risk, Runtime, Tool, ToolCall
from actors.agents import ReActAgent, memory_tools
from actors.testing import FunctionModel, ModelReply
from compose import build_local_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors import ChatMessage, GenerationOptions, LLMClient

ROOMS = {"blue": 8, "green": 20}


async def rooms(people: int) -> list[str]:
    """Return the rooms that are large enough."""
    return [name for name, seats in ROOMS.items() if seats >= people]


async def book(room: str) -> str:
    """Stand in for the calendar."""
    print(f"  calendar: {room} is booked")
    return f"the {room} room is booked"


def tools(*, mcp: bool) -> list[Tool]:
    """Return what the model may call. Each call of `book` waits for a person, as rows."""
    find = Tool("rooms", "Rooms that are large enough for so many people.", rooms, idempotent=True)
    if not mcp:
        return [find, Tool("book", "Book a room.", book, risk=Risk.HIGH)]
    from compose.models import mcp_tools  # noqa: PLC0415 - needs callboard[mcp]

    server = [sys.executable, str(Path(__file__).with_name("calendar_server.py"))]
    return [
        find,
        *mcp_tools("calendar", command=server, prefix=""),
    ]  # an MCP tool is HIGH by default


def scripted(messages: Sequence[ChatMessage], options: GenerationOptions) -> str | ModelReply:
    """Stand in for a model: look, then book; keep what the user says, and find it again."""
    del options
    last = messages[-1]
    if last.role != "user":
        return told_of(last.content[-1].text or "")
    questions = [message.text for message in messages if message.role == "user"]
    if "before" in last.text:
        return f"You asked me {len(questions) - 1} thing(s): {'; '.join(questions[:-1])}"
    if last.text.startswith("Remember"):
        return calling("remember", text="likes a seat by the window", key="seat")
    if last.text.startswith("Where"):
        return calling("recall", query="seat")
    return calling("rooms", people=12)


def told_of(result: str) -> str | ModelReply:
    """Return what the scripted model says of a tool's result."""
    if "booked" in result:
        return f"Done: {result}."
    if result.startswith("remembered"):
        return "Noted."
    if result.startswith("nothing is remembered"):
        return "I know nothing of that."
    if facts := re.findall(r'"text":"([^"]*)"', result):  # recalled texts are marked data, as JSON
        return f"You told me: {'; '.join(facts)}."
    return calling("book", room="green")


def calling(name: str, **arguments: object) -> ModelReply:
    """Return a reply that calls a tool."""
    return ModelReply(calls=[ToolCall(id=name, name=name, arguments=arguments)])


async def talk(runtime: Runtime, helper: ReActAgent, *, order: str, ask: bool) -> None:
    """Order a room, have a person agree, and ask what was said."""
    await runtime.register(helper)
    request = Message(id=f"order-{order}", target=helper.id, payload="Book a room for 12 people")
    run = await runtime.submit(
        helper.id, request
    )  # this id again: the first run, nothing is booked twice
    async for entry in runtime.tail(run):
        if entry.kind == "ask.sent":
            break
    for asked in await runtime.approvals.open(run_id=run):
        print(f"waits for a person: {asked.what} {asked.args}", flush=True)
        agreed = not ask or await asyncio.to_thread(input, "agree? [y/n] ") == "y"
        await runtime.approvals.decide(asked.id, approve=agreed, by="Alex")
    print("assistant:", await runtime.result(run))
    await say(runtime, helper, f"question-{order}", "What did I ask before?")
    await say(runtime, helper, f"wish-{order}", "Remember that I like a seat by the window.")
    await say(runtime, helper, f"seat-{order}", "Where do I like to sit?")
    count = await runtime.history.count_messages(helper.id, session_id="main")
    print(f"the conversation has {count} turns")


async def say(runtime: Runtime, helper: ReActAgent, id_: str, text: str) -> None:
    """Say something to the assistant and print its answer. An id that is known is the first run."""
    run = await runtime.submit(helper.id, Message(id=id_, target=helper.id, payload=text))
    print("assistant:", await runtime.result(run))


async def erase(runtime: Runtime, helper: ReActAgent, *, user: str, order: str) -> None:
    """Remove what was kept about a user, and the conversation in which it was said; then ask again."""
    tenant = helper.id.tenant
    facts = await runtime.erase(tenant=tenant, about=user)
    said = await runtime.erase(tenant=tenant, agent=helper.id, session="main")
    kept, turns = facts.counts["memories"]["versions"], said.counts["conversations"]["turns"]
    print(f"erased of {user}: {kept} memory, {turns} turns")
    print("not reached:", "; ".join(place.name for place in facts.unreached))
    await say(runtime, helper, f"after-{order}", "Where do I like to sit?")


@asynccontextmanager
async def opened(data: Path | None) -> AsyncIterator[Runtime]:
    """Yield a runtime in memory, or on servers of its own in a folder."""
    if data is None:
        async with Runtime() as runtime:
            yield runtime
    else:
        async with build_local_runtime(data) as runtime:
            yield runtime


async def main() -> None:
    """Read the options and talk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the durable servers")
    parser.add_argument("--order", default="1", help="number of the order; a new one books again")
    parser.add_argument(
        "--ask", action="store_true", help="ask at the terminal before a room is booked"
    )
    parser.add_argument("--mcp", action="store_true", help="book by an MCP server")
    parser.add_argument("--user", default="user:alex", help="about whom facts are kept")
    parser.add_argument("--erase", action="store_true", help="erase the user at the end")
    parser.add_argument("--model", help="for example anthropic:NAME; by default a scripted one")
    options = parser.parse_args()
    model: LLMClient = FunctionModel(scripted)
    if options.model:
        from compose.models import model as model_of  # noqa: PLC0415 - needs callboard[models]

        model = model_of(options.model)
    helper = ReActAgent(
        "assistant",
        model=model,
        tools=[*tools(mcp=options.mcp), *memory_tools(about=options.user)],
        instructions="Book rooms. Remember what the user tells you of their habits.",
    )
    async with opened(options.data) as runtime:
        await talk(runtime, helper, order=options.order, ask=options.ask)
        if options.erase:
            await erase(runtime, helper, user=options.user, order=options.order)


if __name__ == "__main__":
    asyncio.run(main())
