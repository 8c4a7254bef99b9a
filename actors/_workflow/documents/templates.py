"""Values of flow documents: JSON data with holes ``${…}`` in its texts, which expressions fill."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from actors._workflow.documents.expressions import (
    LONGEST,
    Expression,
    ExpressionError,
    NodeScope,
    ParsingBudget,
    parse,
)

_HOLE: Final = re.compile(r"\$\$\{|\$\{")
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_TOKEN: Final = re.compile(
    r"""(?s)"{3}(?:\\.|(?!"{3}).)*(?:"{3})?|'{3}(?:\\.|(?!'{3}).)*(?:'{3})?"""
    r"""|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|\#[^\n}]*|[()\[\]{}]"""
)
"""Texts, comments and brackets of an expression. No alternative can fail late, so a search is linear."""
MOST_ENDS: Final = 16
"""Maximum number of braces that are tried as the end of a hole."""

DataPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class HoledText:
    """A text with holes.

    A text that is one hole and nothing else has the hole's value, which may be of any type.
    """

    parts: tuple[str | Expression, ...]

    def value(self, scope: NodeScope) -> Any:
        """Return the filled text, or the value of its only hole."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
            return self.parts[0].value(scope)
        values = (part if isinstance(part, str) else part.value(scope) for part in self.parts)
        return "".join(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values
        )


@dataclass(frozen=True, slots=True)
class Template:
    """JSON data with holes.

    Attributes:
        data: The data as the document has it.
        holes: The texts that have holes, by their paths in the data.
    """

    data: Any
    holes: dict[DataPath, HoledText]

    @property
    def is_code(self) -> bool:
        """True if the expression of a hole is code."""
        parts = (part for text in self.holes.values() for part in text.parts)
        return any(isinstance(part, Expression) and part.is_code for part in parts)

    def value(self, scope: NodeScope) -> Any:
        """Return the data with the values of its holes.

        Raises:
            ExpressionError: The expression of a hole has no value.
        """
        return _fill(self.data, (), {path: text.value(scope) for path, text in self.holes.items()})


def template(
    data: Any, problem: Callable[[DataPath, str], None], budget: ParsingBudget | None = None
) -> Template:
    """Return data as a template. `budget` limits the expressions of its document.

    `problem` is called with the place of each text that cannot be read and the reason.
    """
    holes: dict[DataPath, HoledText] = {}
    for path, text in _texts(data, ()):
        try:
            if (holed_text := _read(text, budget)) is not None:
                holes[path] = holed_text
        except ExpressionError as exc:
            problem(path, str(exc))
    return Template(data, holes)


def _texts(data: Any, path: DataPath) -> Iterator[tuple[DataPath, str]]:
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        for name, value in data.items():
            yield from _texts(value, (*path, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*path, index))


def _read(text: str, budget: ParsingBudget | None) -> HoledText | None:
    """Return a text with holes, or None if it has no hole. ``$${`` stands for the characters ``${``.

    Raises:
        ExpressionError: A hole has no closing brace, or its expression cannot be read.
    """
    parts: list[str | Expression] = []
    offset, begin = 0, _HOLE.search(text)
    if begin is None:
        return None
    while begin is not None:
        before = text[offset : begin.start()]
        if begin[0] == "$${":
            parts.append(before + "${")
            offset = begin.end()
        else:
            inner, offset = _hole(text, begin.end(), budget)
            parts += [before, inner] if before else [inner]
        begin = _HOLE.search(text, offset)
    return HoledText((*parts, text[offset:]) if offset < len(text) else tuple(parts))


def _hole(text: str, start: int, budget: ParsingBudget | None) -> tuple[Expression, int]:
    """Return the expression that begins at `start`, up to its closing brace, and the place after the brace."""
    problem: ExpressionError | None = None
    for end in islice(_ends(text, start), MOST_ENDS):
        try:
            return parse(text[start:end], budget=budget), end + 1
        except ExpressionError as exc:
            problem = exc
    unclosed_problem = "${ has no }. Write $${ for the characters ${"
    raise problem or ExpressionError(text[start - 2 :][:60], unclosed_problem)


def _ends(text: str, start: int) -> Iterator[int]:
    """Yield the places of braces that may close a hole: first the one that is in no text and no other brace.

    The others follow, because the scan does not read all that Python's parser reads.
    """
    max_end = start + LONGEST + 1
    likely = _closing_brace(text, start, max_end)
    if likely >= 0:
        yield likely
    end = text.find("}", start)
    while end >= 0:
        if end != likely:
            yield end
        end = text.find("}", end + 1, max_end)


def _closing_brace(text: str, start: int, max_end: int) -> int:
    """Return the place of the first brace that closes none which the expression opened; -1 if there is none."""
    depth = 0
    for token in _TOKEN.finditer(text, start, max_end):
        if token[0] in _OPENING:
            depth += 1
        elif token[0] == "}" and depth == 0:
            return token.start()
        elif token[0] in _CLOSING:
            depth -= 1
    return -1


def _fill(data: Any, path: DataPath, values: dict[DataPath, Any]) -> Any:
    if path in values:
        return values[path]
    if isinstance(data, dict):
        return {name: _fill(value, (*path, name), values) for name, value in data.items()}
    if isinstance(data, list):
        return [_fill(value, (*path, index), values) for index, value in enumerate(data)]
    return data
