"""A newsroom: an editor sends out one researcher per file, and a digest goes to the followers.

Usage:
    python examples/newsroom/newsroom.py docs/*.md              # in memory
    python examples/newsroom/newsroom.py docs/*.md --data DIR   # on durable servers in a folder
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors import AgentId, RetryPolicy, Runtime, TopicId
from compose import build_local_runtime
from compose.demo.desk import telling_sentences

if TYPE_CHECKING:
    from actors import Message, RunContext

EDITOR = AgentId("editor", "morning")
DIGEST = TopicId("digest", "morning")
SUBSCRIBERS = ("Ada", "Grace", "Edsger")


class Researcher:
    """Reads one file and says what is in it. Every key is another researcher."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return the file's most central sentence."""
        path = str(inbox[0].payload)
        return await ctx.step("read", read, path)


class Editor:
    """Sends out researchers, puts their findings together, and publishes."""

    id = EDITOR

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Publish one digest of all files; a file that cannot be read costs its own paragraph only."""
        paths: list[str] = inbox[0].payload  # type: ignore[assignment]
        once_more = RetryPolicy(max_retries=1, backoff_s=0.2)
        out = [await ctx.spawn("researcher", boot=path, retry_policy=once_more) for path in paths]
        found = await ctx.gather(*(ctx.join(one) for one in out))
        good = [one.output for one in found if one.status == "COMPLETED"]
        digest = {
            "written_at": (await ctx.now()).isoformat(timespec="seconds"),
            "paragraphs": sorted(good, key=lambda one: -one["characters"]),
            "unreadable": [path for path, one in zip(paths, found, strict=True) if one.error],
        }
        await ctx.emit(DIGEST, digest)
        return digest


class Subscriber:
    """Follows the digest, and keeps what it got."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Subscribe on request; read every digest once."""
        for message in inbox:
            if message.payload == "subscribe":
                await ctx.follow(DIGEST)
                return "subscribed"
        paragraphs = inbox[-1].payload["paragraphs"]  # type: ignore[index, call-overload]
        read_before = await ctx.state.get("digests") or 0
        await ctx.state.set("digests", read_before + len(inbox))
        return f"digest {read_before + len(inbox)}: {len(paragraphs)} paragraphs"


def read(path: str) -> dict[str, Any]:
    """Return what one file says, in a sentence."""
    text = Path(path).read_text(encoding="utf-8")
    best = telling_sentences(text, 1)
    sentence = best[0].text if best else "(nothing to quote)"
    return {"file": Path(path).name, "characters": len(text), "sentence": sentence}


async def publish_digest(runtime: Runtime, paths: list[str]) -> None:
    """Let three people subscribe, send the editor out, and wait until all have read."""
    await runtime.register(Editor())
    await runtime.register_type("researcher", Researcher)
    await runtime.register_type("subscriber", Subscriber)
    readers = [AgentId("subscriber", name) for name in SUBSCRIBERS]
    for reader in readers:
        await runtime.result(await runtime.submit(reader, "subscribe"))
    run = await runtime.submit(EDITOR, paths)
    digest: Any = await runtime.result(run)
    print(f"The digest of {digest['written_at']}, by {EDITOR} (run {run[:8]})\n")
    for one in digest["paragraphs"]:
        print(f"  {one['file']} ({one['characters']:,} characters)\n    {one['sentence']}")
    for path in digest["unreadable"]:
        print(f"  {path}: could not be read")
    children = await runtime.children(run)
    print(f"\nresearched by {len(children)} agents; read by")
    for reader in readers:
        print(f"  {reader.key}: {await reading(runtime, reader)}")


async def reading(runtime: Runtime, reader: AgentId) -> Any:
    """Return what a subscriber made of the digest, when it has."""
    while True:
        for row in await runtime.store.lists.runs(agent=reader, limit=1):
            output = (await runtime.wait(row.run_id)).result
            if output != "subscribed":
                return output
        await asyncio.sleep(0.01)


async def main() -> None:
    """Run on the files that were named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="texts to read")
    parser.add_argument("--data", type=Path, help="folder of durable servers; left out: memory")
    given = parser.parse_args()
    async with AsyncExitStack() as stack:
        building = build_local_runtime(given.data) if given.data else Runtime()
        await publish_digest(await stack.enter_async_context(building), given.files)


if __name__ == "__main__":
    asyncio.run(main())
