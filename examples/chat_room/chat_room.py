"""A chat room: three characters follow a room, answer what they hear, and leave when they are bored.

Usage:
    python examples/chat_room/chat_room.py                # in memory
    python examples/chat_room/chat_room.py --data DIR     # on durable servers in a folder
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors import AgentId, Runtime, TopicId
from compose import build_local_runtime

if TYPE_CHECKING:
    from actors import Message, RunContext

ROOM = TopicId("room", "lobby")
# What each one says to what it hears; words decide, as in ELIZA (Weizenbaum, CACM 1966).
CHARACTERS: dict[str, dict[str, str]] = {
    "Ada": {
        "coffee": "The Engine could weave coffee orders as it weaves algebra.",
        "bug": "Note G has a bug. I left it for you.",
    },
    "Grace": {
        "algebra": "I brought a nanosecond: a foot of wire. And coffee.",
        "bug": "Taped it into the log book: a moth.",
        "coffee": "It is easier to ask forgiveness than for coffee.",
    },
    "Edsger": {
        "moth": "Testing shows the presence of moths, never their absence.",
        "nanosecond": "Do not spend it on a bug.",
    },
}
PATIENCE_S = 1.0


class Guest:
    """One character, in the room from its first message until nothing new is said."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return what was heard, in order, and what was said."""
        words = CHARACTERS[self.id.key]
        heard: list[str] = []
        said: list[str] = []
        await ctx.follow(ROOM)
        await ctx.reply(inbox[0], "in the room")
        while (message := await ctx.receive(timeout=PATIENCE_S)) is not None:
            line: dict[str, str] = message.payload  # type: ignore[assignment]
            heard.append(f"{line['who']}: {line['text']}")
            answers = [text for word, text in words.items() if word in line["text"].lower()]
            fresh = [text for text in answers if text not in said][:1]
            if line["who"] != self.id.key:
                for text in fresh:
                    said.append(text)
                    await ctx.emit(ROOM, {"who": self.id.key, "text": text})
        await ctx.unfollow(ROOM)
        return {"heard": heard, "said": said}


class Host:
    """Starts the characters, says good morning, and waits until all have left."""

    id = AgentId("host", "lobby")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return what every guest heard and said."""
        welcomes = [
            await ctx.ask(AgentId("guest", name), "come in", timeout=30) for name in CHARACTERS
        ]
        assert all(one.result == "in the room" for one in welcomes), welcomes
        await ctx.emit(ROOM, {"who": "host", "text": inbox[0].payload})
        visits = await ctx.gather(*(ctx.join(one.handle) for one in welcomes if one.handle))
        return {name: one.output for name, one in zip(CHARACTERS, visits, strict=True)}


async def open_room(runtime: Runtime, first_words: str) -> None:
    """Play one conversation and print it as all characters heard it."""
    await runtime.register(Host())
    await runtime.register_type("guest", Guest)
    run = await runtime.submit(Host.id, first_words)
    visits: Any = await runtime.result(run)
    heard = [visit["heard"] for visit in visits.values()]
    for line in heard[0]:
        print(f"  {line}")
    agreed = "the same, in the same order" if heard.count(heard[0]) == len(heard) else "different"
    print(f"\n{len(heard)} guests heard {agreed}; {len(heard[0])} lines")


async def main() -> None:
    """Run with the first words that were given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="?", default="Good morning! Who wants coffee?")
    parser.add_argument("--data", type=Path, help="folder of durable servers; left out: memory")
    given = parser.parse_args()
    async with AsyncExitStack() as stack:
        building = build_local_runtime(given.data) if given.data else Runtime()
        await open_room(await stack.enter_async_context(building), given.words)


if __name__ == "__main__":
    asyncio.run(main())
