"""Values of flow documents: JSON data with holes ``${…}`` in its texts, which expressions fill."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from actors.workflow.documents.expressions import Expression, ExpressionError, NodeScope, parse

_HOLE: Final = re.compile(r"\$\$\{|\$\{")

DataPlace = tuple[str | int, ...]


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
        return "".join(
            one if isinstance(one, str) else _shown(one.value(scope)) for one in self.parts
        )


@dataclass(frozen=True, slots=True)
class Template:
    """JSON data with holes.

    Attributes:
        data: The data as the document has it.
        holes: The texts that have holes, by place.
    """

    data: Any
    holes: dict[DataPlace, HoledText]

    def value(self, scope: NodeScope) -> Any:
        """Return the data with the values of its holes.

        Raises:
            ExpressionError: The expression of a hole has no value.
        """
        return _filled(
            self.data, (), {place: text.value(scope) for place, text in self.holes.items()}
        )


def template(data: Any, problem: Callable[[DataPlace, str], None]) -> Template:
    """Return data as a template.

    `problem` is called with the place of each text that cannot be read and the reason.
    """
    holes: dict[DataPlace, HoledText] = {}
    for place, text in _texts(data, ()):
        try:
            if (found := _read(text)) is not None:
                holes[place] = found
        except ExpressionError as exc:
            problem(place, str(exc))
    return Template(data, holes)


def _texts(data: Any, place: DataPlace) -> Iterator[tuple[DataPlace, str]]:
    if isinstance(data, str):
        yield place, data
    elif isinstance(data, dict):
        for name, value in data.items():
            yield from _texts(value, (*place, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*place, index))


def _read(text: str) -> HoledText | None:
    """Return a text with holes. None: the text has no hole. ``$${`` stands for the characters ``${``.

    Raises:
        ExpressionError: A hole has no closing brace, or its expression cannot be read.
    """
    parts: list[str | Expression] = []
    rest, has_hole = text, False
    while (begin := _HOLE.search(rest)) is not None:
        has_hole = True
        before, after = rest[: begin.start()], rest[begin.end() :]
        if begin[0] == "$${":
            parts.append(before + "${")
            rest = after
            continue
        inner, rest = _hole(after, text)
        parts += [before, inner] if before else [inner]
    if not has_hole:
        return None
    return HoledText((*parts, rest) if rest else tuple(parts))


def _hole(after: str, text: str) -> tuple[Expression, str]:
    """Return the expression at the start of a text, up to its closing brace, and the text after the brace."""
    end, problem = -1, None
    while (end := after.find("}", end + 1)) >= 0:
        try:
            return parse(after[:end]), after[end + 1 :]
        except ExpressionError as exc:
            problem = exc
    unclosed = "${ has no }. Write $${ for the characters ${"
    raise problem or ExpressionError(text[:60], unclosed)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _filled(data: Any, place: DataPlace, values: dict[DataPlace, Any]) -> Any:
    if place in values:
        return values[place]
    if isinstance(data, dict):
        return {name: _filled(value, (*place, name), values) for name, value in data.items()}
    if isinstance(data, list):
        return [_filled(value, (*place, index), values) for index, value in enumerate(data)]
    return data
