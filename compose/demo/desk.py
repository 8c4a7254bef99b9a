"""The agent of the demo: `Desk` reads documents and writes one report about them.

`Desk.run` has no code for crashes. Each `ctx.step` is recorded before it returns, so a second host continues
after the last recorded step: see `examples/desk/README.md`.
"""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Final, TypedDict

from actors.errors import EffectDidNotHappen
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import AgentId
from actors.runtime import RunContext, idempotency_key
from compose.demo.ledger import append_line, lines_of, noted
from compose.demo.textrank import telling_sentences

MAX_CHARACTERS: Final = 60_000
"""Greatest number of characters that are read of each document, because the run's log keeps a step's result."""


class Job(TypedDict):
    """The payload of the agent's message. All paths are absolute."""

    documents: list[str]
    sentences: int
    """Number of sentences of each document in the report."""
    pace_s: float
    """Seconds to spend on each document, so that a person can watch."""
    report: str
    published: str
    ledger: str


class Section(TypedDict):
    """The report's section about one document."""

    document: str
    sentences: list[str]
    characters: int
    read_at: str


class Desk:
    """An agent that reads documents, publishes a headline for each, and writes a report."""

    id = AgentId("desk", "main")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, object]:
        """Execute the job of the message's payload. Return the report's path and the number of documents."""
        job: Job = inbox[0].payload  # type: ignore[assignment]
        ledger = job["ledger"]
        sections: list[Section] = []
        for path in job["documents"]:
            text = await ctx.step("read", noted(ledger, read_document), path)
            best: list[str] = await ctx.step(
                "extract", noted(ledger, extract), text, job["sentences"], job["pace_s"]
            )
            read_at = await ctx.now()
            # A published line must not be published again, so this step executes at most once. If a crash
            # leaves the step without a result, `was_published` checks whether it happened.
            await ctx.step(
                "publish",
                noted(ledger, publish),
                job["published"],
                headline(path, best),
                effect="at_most_once",
                reconcile=functools.partial(was_published, job["published"]),
            )
            sections.append(
                Section(
                    document=path, sentences=best, characters=len(text), read_at=read_at.isoformat()
                )
            )
        report = await ctx.step("report", noted(ledger, write_report), job["report"], sections)
        return {"report": report, "documents": len(sections)}


def read_document(path: str) -> str:
    """Return the start of a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")[:MAX_CHARACTERS]


async def extract(text: str, count: int, pace_s: float) -> list[str]:
    """Return the most central sentences by TextRank, which runs in a thread."""
    best = await asyncio.to_thread(telling_sentences, text, count)
    await asyncio.sleep(pace_s)
    return [sentence.text for sentence in best]


def headline(path: str, sentences: list[str]) -> str:
    """Return the line to publish about a document."""
    first = sentences[0] if sentences else "(no prose)"
    return f"{Path(path).name}: {first}"


def publish(published: str, line: str) -> None:
    """Append one line with the effect's key to a file, as an action that cannot be undone."""
    append_line(published, f"{idempotency_key()} {line}")


async def was_published(published: str, effect_id: str) -> None:
    """Return if the file has the effect's line.

    Raises:
        EffectDidNotHappen: The file does not have the line.
    """
    if not any(line.startswith(effect_id) for line in lines_of(published)):
        raise EffectDidNotHappen


def write_report(report: str, sections: list[Section]) -> str:
    """Write the report as Markdown, completely or not at all, and return its path."""
    lines = ["# What the documents say", ""]
    lines += [f"{len(sections)} documents; the most central sentences of each, by TextRank.", ""]
    for section in sections:
        name, size = Path(section["document"]).name, section["characters"]
        lines += [f"## {name}", "", f"{size:,} characters, read {section['read_at'][:19]} UTC", ""]
        lines += [f"- {sentence}" for sentence in section["sentences"]] or ["- (no prose)"]
        lines.append("")
    partial = Path(f"{report}.partial")
    partial.write_text("\n".join(lines), encoding="utf-8")
    partial.replace(report)
    return report


AGENTS: Final = [Desk()]
"""Agents that `callboard host compose.demo.desk:AGENTS` serves."""
