"""The agent of the demo: `Desk` reads documents and writes one report about them.

`Desk.run` has no code for crashes. Each `ctx.step` is recorded before it returns, so a second host continues
after the last recorded step: see `examples/desk/README.md`.

Each step also writes a line to the ledger, a file that the runtime does not use, so that it is independent
evidence about the runtime. The documents are a folder of yours, or documentation in the Python installation.

TextRank finds the most central sentences of a document by graph ranking, without a model or training. Sentences
are nodes. The weight of an edge is the number of words that two sentences share, divided by the sum of the
logarithms of their lengths. The weighted PageRank of this graph ranks the sentences. Source: Rada Mihalcea and
Paul Tarau, "TextRank: Bringing Order into Texts", EMNLP 2004, section 4 (sentence extraction); damping 0.85 and
the threshold 0.0001 are the paper's.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, TypedDict, TypeVar

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId
from actors._runtime import RunContext, idempotency_key
from actors.errors import ContractError, EffectDidNotHappen

__all__ = ["Job", "LedgerEntry", "append_line", "executions", "lines_of", "telling_sentences"]

P = ParamSpec("P")
T = TypeVar("T")
MAX_CHARACTERS: Final = 60_000
"""Greatest number of characters that are read of each document, because the run's log keeps a step's result."""
MAX_DOCUMENTS: Final = 40
SUFFIXES: Final = (".txt", ".md", ".rst")
# Long prose chapters of the language reference, as `help()` shows them on every installation.
_TOPICS: Final = (
    "execmodel exceptions objects import numbers debugger try with typesmapping class function naming "
    "attribute-access customization"
)
_DEFAULT_COUNT: Final = 8
_FALLBACK_MODULES: Final = (
    "argparse asyncio contextlib decimal difflib doctest http.client logging optparse random "
    "statistics string subprocess tarfile threading unittest zipfile"
)
_ENOUGH_CHARACTERS: Final = 1500
DAMPING: Final = 0.85
THRESHOLD: Final = 0.0001
MAX_ROUNDS: Final = 100
MAX_SENTENCES: Final = 200
"""Greatest number of ranked sentences: of a longer text only the first ones. Edges grow with its square."""
_SHORTEST, _LONGEST = 6, 60
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_ABBREVIATION: Final = re.compile(
    r"\b(?:e\.g|i\.e|etc|cf|vs|Mr|Dr|St|No|Fig|p|pp)\.$", re.IGNORECASE
)
_END: Final = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-Z])")
# The most common English words, which do not show that two sentences have a common topic.
_STOP_WORDS: Final = frozenset(
    """a about after all also an and any are as at be because been but by can could did do does for
    from had has have he her his how if in into is it its may more most must no not of on only or
    other our out over she should so some such than that the their them then there these they this
    those to under up use used was we were what when where which while who will with would you your
    """.split()  # noqa: SIM905 - a list of words is read as words
)


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

    id: AgentId = AgentId("desk", "main")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, object]:
        """Execute the job of the message's payload. Return the report's path and the number of documents."""
        job: Job = inbox[0].payload  # type: ignore[assignment]
        ledger = job["ledger"]
        sections: list[Section] = []
        for path in job["documents"]:
            text = await ctx.step("read", with_ledger(ledger, read_document), path)
            best: list[str] = await ctx.step(
                "extract", with_ledger(ledger, extract), text, job["sentences"], job["pace_s"]
            )
            read_at = await ctx.now()
            # A published line must not be published again, so this step executes at most once. If a crash
            # leaves the step without a result, `was_published` checks whether it happened.
            await ctx.step(
                "publish",
                with_ledger(ledger, publish),
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
        report_path = await ctx.step(
            "report", with_ledger(ledger, write_report), job["report"], sections
        )
        return {"report": report_path, "documents": len(sections)}


AGENTS: Final = [Desk()]
"""Agents that `callboard host compose.demo.desk:AGENTS` serves."""


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


def publish(published_path: str, line: str) -> None:
    """Append one line with the effect's key to a file, as an action that cannot be undone."""
    append_line(published_path, f"{idempotency_key()} {line}")


async def was_published(published_path: str, effect_id: str) -> None:
    """Return if the file has the effect's line.

    Raises:
        EffectDidNotHappen: The file does not have the line.
    """
    if not any(line.startswith(effect_id) for line in lines_of(published_path)):
        raise EffectDidNotHappen


def write_report(report_path: str, sections: list[Section]) -> str:
    """Write the report as Markdown, completely or not at all, and return its path."""
    lines = ["# What the documents say", ""]
    lines += [f"{len(sections)} documents; the most central sentences of each, by TextRank.", ""]
    for section in sections:
        name, size = Path(section["document"]).name, section["characters"]
        lines += [f"## {name}", "", f"{size:,} characters, read {section['read_at'][:19]} UTC", ""]
        lines += [f"- {sentence}" for sentence in section["sentences"]] or ["- (no prose)"]
        lines.append("")
    partial_path = Path(f"{report_path}.partial")
    partial_path.write_text("\n".join(lines), encoding="utf-8")
    partial_path.replace(report_path)
    return report_path


def documents_in(folder: Path) -> list[Path]:
    """Return the text files of a folder and its subfolders, by name, at most 40.

    Raises:
        ContractError: The path is not a folder, or the folder has no text file.
    """
    if not folder.is_dir():
        raise ContractError(f"{folder} is not a folder: name one that holds text files")
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file() and path.stat().st_size
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise ContractError(f"{folder} holds no {', '.join(SUFFIXES)} file: name another folder")
    return paths[:MAX_DOCUMENTS]


def write_default_documents(folder: Path) -> list[Path]:
    """Write eight chapters of Python's documentation into `folder`, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in _default_texts():
        path = folder / f"{name}.txt"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _default_texts() -> list[tuple[str, str]]:
    """Return names and texts: chapters of the language reference, else documentation of modules."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        topics = {}
    chapters = [(name, topics[name]) for name in _TOPICS.split() if name in topics]
    if len(chapters) < _DEFAULT_COUNT:
        chapters += [(f"module-{name}", _documentation(name)) for name in _FALLBACK_MODULES.split()]
    long_chapters = [pair for pair in chapters if len(pair[1]) >= _ENOUGH_CHARACTERS] or chapters
    return [(re.sub(r"[^\w-]", "-", name), text) for name, text in long_chapters[:_DEFAULT_COUNT]]


def _documentation(name: str) -> str:
    """Return the docstrings of a module, its classes and its functions as one text."""
    module = importlib.import_module(name)
    public_members = [vars(module)[key] for key in sorted(vars(module)) if not key.startswith("_")]
    own_members = [
        member for member in public_members if getattr(member, "__module__", None) == name
    ]
    return "\n\n".join(filter(None, (inspect.getdoc(member) for member in (module, *own_members))))


class LedgerEntry(NamedTuple):
    """A line of the ledger, which records one call of a step's function."""

    effect: str
    """The effect's id, which is the same for every execution of one step of one run."""
    name: str
    pid: int


def with_ledger(ledger: str, step: Callable[P, T]) -> Callable[P, T]:
    """Return a function that appends a line to the ledger, and then calls `step`."""

    @functools.wraps(step)
    def execute(*args: P.args, **kwargs: P.kwargs) -> T:
        line = LedgerEntry(idempotency_key(), step.__name__, os.getpid())
        append_line(ledger, json.dumps(line._asdict()))
        return step(*args, **kwargs)

    return execute


def executions(ledger: Path) -> list[LedgerEntry]:
    """Return the lines of the ledger so far, in order."""
    return [LedgerEntry(**json.loads(line)) for line in lines_of(str(ledger))]


def lines_of(path: str) -> list[str]:
    """Return the complete lines of a file to which other processes append; empty if there is no file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text.rpartition("\n")[0].splitlines()


def append_line(path: str, line: str) -> None:
    """Append one line by one write, so that a killed process leaves a whole line or none."""
    data = (line.replace("\n", " ") + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A sentence, its index in the text (0 is the first) and its rank. The mean rank of a text is about 1."""

    text: str
    index: int
    score: float


def telling_sentences(text: str, count: int) -> list[Ranked]:
    """Return the `count` highest ranked sentences in the order of the text, or all if it has fewer."""
    sentences = split_sentences(text)[:MAX_SENTENCES]
    scores = rank([_words(sentence) for sentence in sentences])
    ranked_sentences = [
        Ranked(sentence, index, score)
        for index, (sentence, score) in enumerate(zip(sentences, scores, strict=True))
    ]
    best = sorted(ranked_sentences, key=lambda sentence: (-sentence.score, sentence.index))[:count]
    return sorted(best, key=lambda sentence: sentence.index)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of the prose in a text, without headings, code, lists and tables."""
    sentences: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if not _is_prose(lines):
            continue
        flat = " ".join(line.strip() for line in lines)
        start = 0
        for end in [*(match.end() for match in _END.finditer(flat)), len(flat)]:
            sentence = flat[start:end].strip()
            if _ABBREVIATION.search(sentence):
                continue
            start = end
            if _SHORTEST <= len(sentence.split()) <= _LONGEST and sentence[-1] in ".!?\"')":
                sentences.append(sentence)
    return sentences


def _is_prose(lines: Sequence[str]) -> bool:
    if not lines or any(re.fullmatch(r"\s*[-=*~^+#|]{3,}.*", line) for line in lines):
        return False
    if re.match(r"\s*(?:[#>|*+\-]|>>>|\.\.|\d+\.\s)", lines[0]) or lines[0][:1] == "\t":
        return False
    indented_count = sum(line.startswith("    ") for line in lines)
    letters = sum(character.isalpha() or character == " " for line in lines for character in line)
    return indented_count < len(lines) and letters > 0.9 * sum(map(len, lines))


def _words(sentence: str) -> frozenset[str]:
    words = (word.lower() for word in _WORD.findall(sentence))
    return frozenset(word for word in words if word not in _STOP_WORDS)


def similarity(words: frozenset[str], other_words: frozenset[str]) -> float:
    """Return the number of shared words divided by the sum of the logarithms of both lengths."""
    shared_count = len(words & other_words)
    size = math.log(len(words)) + math.log(len(other_words)) if words and other_words else 0.0
    return shared_count / size if shared_count and size > 0 else 0.0


def rank(sentences: Sequence[frozenset[str]]) -> list[float]:
    """Return the weighted PageRank of each sentence in the graph of their similarities."""
    edges: list[list[tuple[int, float]]] = [[] for _ in sentences]
    for i, words in enumerate(sentences):
        for j in range(i):
            weight = similarity(words, sentences[j])
            if weight > 0:
                edges[i].append((j, weight))
                edges[j].append((i, weight))
    strength = [sum(weight for _, weight in row) for row in edges]
    scores = [1.0] * len(sentences)
    for _ in range(MAX_ROUNDS):
        new_scores = [
            (1 - DAMPING) + DAMPING * sum(weight / strength[j] * scores[j] for j, weight in row)
            for row in edges
        ]
        largest_change = max(
            (abs(a - b) for a, b in zip(new_scores, scores, strict=True)), default=0.0
        )
        scores = new_scores
        if largest_change < THRESHOLD:
            break
    return scores
