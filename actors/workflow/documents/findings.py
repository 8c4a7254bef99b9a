"""Findings: each mistake in a flow document, with its place and the way out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from typing_extensions import override

from actors.errors import ContractError, Facts

MOST_FINDINGS = 200
"""Of more mistakes in a document so many are reported."""


@dataclass(frozen=True, slots=True)
class FlowFinding:
    """A mistake in a document.

    Attributes:
        file: The name of the document.
        pointer: The place in it, as a JSON pointer (RFC 6901); empty for the whole.
        problem: A sentence without its full stop.
        remedy: The way out, as a sentence.
        level: An ``error`` refuses the document, a ``warning`` does not.
    """

    file: str
    pointer: str
    problem: str
    remedy: str
    level: Literal["error", "warning"] = "error"

    def to_dict(self) -> dict[str, str]:
        """Return the finding as JSON data."""
        return asdict(self)

    @override
    def __str__(self) -> str:
        return f"{self.file}#{self.pointer}: {self.problem}. {self.remedy}"


class FlowError(Facts, ContractError, ValueError):
    """A flow document is refused. It has all mistakes that were found, not only the first one."""

    findings: tuple[FlowFinding, ...]

    @override
    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer of a place."""
    escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return "".join(f"/{step}" for step in escaped)
