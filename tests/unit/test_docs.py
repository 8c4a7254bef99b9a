"""What the documents show is run."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import SpawnBudget
from actors._kernel.runtime.ids import AgentId, token
from broker import Subjects
from broker._wire.headers import TARGET
from broker._wire.subjects import parse_origin, parse_post_origin
from tests.unit.documents import ROOT, blocks, published

if TYPE_CHECKING:
    from pathlib import Path


def readme_prints(tmp_path: Path, index: int) -> str:
    """What a Python block of the README prints when it is run as it stands."""
    script = tmp_path / "readme.py"
    script.write_text(blocks("README.md", "python")[index], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_example_runs_as_it_stands(tmp_path: Path) -> None:
    """The first Python block of the README is a whole program and prints what it promises."""
    assert readme_prints(tmp_path, 0).startswith("mail to Ada : Dear Ada,\n{'greeted': 'Ada'")


def test_the_budget_that_a_tree_has_by_itself_is_in_the_document() -> None:
    """Whoever spawns the fifty-first run has read of it."""
    text = " ".join((ROOT / "docs/semantics.md").read_text(encoding="utf-8").split())
    budget = SpawnBudget()

    assert f"a tree spawns {budget.max_runs} runs over its life" in text
    assert budget.max_concurrent is None
    assert "not limited unless `max_concurrent` says so" in text


def test_it_is_said_of_each_table_how_long_its_rows_are_kept() -> None:
    """A table that nobody thought of grows for ever."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    [section] = re.findall(r"\n## What is kept.*?\n## ", text, flags=re.DOTALL)
    named_tables = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall("`(.+?)`", line.split("|")[1])
    }
    files = (ROOT / "persistence/_postgres/schema").rglob("*.sql")
    created_tables = {
        name
        for file in files
        for name in re.findall(
            r"^ *create table (?:if not exists )?(\w+)", file.read_text("utf-8"), flags=re.MULTILINE
        )
    }

    assert len(created_tables) > 40
    assert created_tables - named_tables == set()


def test_the_readme_conversation_runs_as_it_stands(tmp_path: Path) -> None:
    """So do the second one, of an agent that remembers, and the third one, of agents that talk."""
    assert readme_prints(tmp_path, 1) == "It is mild in Bern.\nYou asked about Bern.\n"
    assert readme_prints(tmp_path, 2) == "{'claims': ['water is wet']}\n"


@pytest.mark.parametrize(("page", "count"), [("docs/context.md", 6), ("docs/memory.md", 9)])
async def test_the_blocks_of_a_page_run_in_order(page: str, count: int) -> None:
    """They go on from each other, and await as a prompt of `python -m asyncio` does."""
    code_blocks = blocks(page, "python")
    names: dict[str, object] = {}

    for number, block in enumerate(code_blocks):
        name = f"{page}, block {number}"
        code = compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)
        if inspect.iscoroutine(done):
            await done

    assert len(code_blocks) >= count


@pytest.mark.parametrize(
    "name", ["README.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    """Every relative link of a document names a file that exists."""
    path = ROOT / name if (ROOT / name).exists() else ROOT / "docs" / name
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))

    missing = [link for link in links if not (path.parent / link).exists()]

    assert missing == []


def test_every_published_subject_in_the_documents_is_one_for_external_clients() -> None:
    """It leads to an agent or a topic, and the line below says what comes of it."""
    commands = [
        command for block in blocks("docs/subjects.md", "sh") for command in published(block)
    ]

    assert len(commands) >= 14
    for command in commands:
        if command.subject.startswith("topic."):
            post = parse_post_origin(Subjects(), command.subject)
            publisher, target = post.publisher, str(post.topic)
        else:
            origin = parse_origin(Subjects(), command.subject)
            publisher, target = origin.publisher, str(origin.agent)
        assert publisher in {"crm", "shop"}
        assert target in command.outcome or command.outcome.startswith("nothing")


def test_the_table_of_tokens_is_true() -> None:
    """Each name makes the token beside it; the long one makes a hash, which is described."""
    text = (ROOT / "docs" / "subjects.md").read_text(encoding="utf-8")
    tables = text.partition("### Tokens")[2].partition("## Bodies")[0]
    rows = dict(re.findall(r"^\| `(.*)` \| `(.*)` \|$", tables, re.MULTILINE))
    long = re.findall(r"^\| 200 times `k` \| `(.*)` \|$", tables, re.MULTILINE)
    hash_input = b"\x00\x00\x00\x05token" + (200).to_bytes(4, "big") + b"k" * 200

    assert len(rows) >= 8
    assert {name: token(name) for name in rows} == rows
    assert long == [token("k" * 200)]
    assert long == ["h-" + hashlib.blake2b(hash_input, digest_size=16).hexdigest()]
    assert TARGET in tables
    assert Subjects().external(AgentId("desk", "a b"), "crm").endswith(".a%20b.ext.crm")
