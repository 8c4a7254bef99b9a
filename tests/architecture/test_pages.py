"""Pages have one sentence a line, so that a diff shows the sentence that changed."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from markdown_it import MarkdownIt

from tests.architecture.test_house_rules import ROOT

ROOTS: Final = ("*.md", "docs/**/*.md", "examples/**/*.md", "tests/*.md", "[cp]*/**/*.md")
PART: Final = re.compile(r'(`+)[^`].*?\1|\]\([^)]*\)|"[^"]*"|\([^()]*\)|^\*\*[^*]+\*\*(?= )')
"""Code, targets, quotations, brackets and heads in bold: a part of the sentence around them."""
END: Final = r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\.\.)[.!?][*_\")\]]*"


def lines_of(text: str) -> list[str]:
    """Return the lines of a paragraph; of each part that ends no sentence its last two characters."""
    return [PART.sub(lambda part: part[0][-2:], line) for line in text.split("\n")]


def test_a_line_is_a_sentence() -> None:
    """Paragraphs are not wrapped within a sentence. The changelog has one line for each change."""
    pages = {page for root in ROOTS for page in ROOT.glob(root)} - {ROOT / "CHANGELOG.md"}
    wrong = []
    for page in sorted(pages):
        tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
        texts = [text for opening, text in pairwise(tokens) if opening.type == "paragraph_open"]
        for text in texts:
            *others, last = lines_of(text.content)
            wraps = any(not re.search(rf"{END}$", line) for line in others)
            if wraps or any(re.search(rf"{END} ", line) for line in (*others, last)):
                wrong.append(f"{page.relative_to(ROOT)}:{(text.map or [0])[0] + 1}")

    assert len(pages) > 70
    assert wrong == []
