"""TextRank: find the most central sentences of a text by graph ranking, without a model or training.

Sentences are nodes. The weight of an edge is the number of words that two sentences share, divided by the sum
of the logarithms of their lengths. The weighted PageRank of this graph ranks the sentences.

Source: Rada Mihalcea and Paul Tarau, "TextRank: Bringing Order into Texts", EMNLP 2004,
section 4 (sentence extraction); damping 0.85 and the threshold 0.0001 are the paper's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
    ranked = [
        Ranked(sentence, index, score)
        for index, (sentence, score) in enumerate(zip(sentences, scores, strict=True))
    ]
    best = sorted(ranked, key=lambda one: (-one.score, one.index))[:count]
    return sorted(best, key=lambda one: one.index)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of the prose in a text, without headings, code, lists and tables."""
    found: list[str] = []
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
                found.append(sentence)
    return found


def _is_prose(lines: Sequence[str]) -> bool:
    if not lines or any(re.fullmatch(r"\s*[-=*~^+#|]{3,}.*", line) for line in lines):
        return False
    if re.match(r"\s*(?:[#>|*+\-]|>>>|\.\.|\d+\.\s)", lines[0]) or lines[0][:1] == "\t":
        return False
    indented = sum(line.startswith("    ") for line in lines)
    letters = sum(character.isalpha() or character == " " for line in lines for character in line)
    return indented < len(lines) and letters > 0.9 * sum(map(len, lines))


def _words(sentence: str) -> frozenset[str]:
    found = (word.lower() for word in _WORD.findall(sentence))
    return frozenset(word for word in found if word not in _STOP_WORDS)


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the number of shared words divided by the sum of the logarithms of both lengths."""
    shared = len(one & other)
    size = math.log(len(one)) + math.log(len(other)) if one and other else 0.0
    return shared / size if shared and size > 0 else 0.0


def rank(sentences: Sequence[frozenset[str]]) -> list[float]:
    """Return the weighted PageRank of each sentence in the graph of their similarities."""
    edges: list[list[tuple[int, float]]] = [[] for _ in sentences]
    for i, one in enumerate(sentences):
        for j in range(i):
            weight = similarity(one, sentences[j])
            if weight > 0:
                edges[i].append((j, weight))
                edges[j].append((i, weight))
    strength = [sum(weight for _, weight in row) for row in edges]
    scores = [1.0] * len(sentences)
    for _ in range(MAX_ROUNDS):
        fresh = [
            (1 - DAMPING) + DAMPING * sum(weight / strength[j] * scores[j] for j, weight in row)
            for row in edges
        ]
        moved = max((abs(a - b) for a, b in zip(fresh, scores, strict=True)), default=0.0)
        scores = fresh
        if moved < THRESHOLD:
            break
    return scores
