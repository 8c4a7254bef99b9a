"""Findings: the mistakes in a flow document, each with its place and a remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from typing_extensions import override

from actors.errors import ContractError, Facts

MOST_FINDINGS = 200
"""Maximum number of mistakes that are reported for a document."""
MOST_COMPARED: Final = 2_000_000
"""Maximum number of pairs of characters that are compared for suggestions: about half a second of CPU."""


@dataclass(frozen=True, slots=True)
class FlowFinding:
    """A mistake in a document.

    Attributes:
        file: The name of the document.
        pointer: The place in the document as a JSON pointer (RFC 6901). Empty: the whole document.
        problem: A sentence without its full stop.
        remedy: The remedy, as a sentence.
        level: ``error``: the document is refused. ``warning``: the document is accepted.
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
    """A flow document was refused. The error has all mistakes that were found, not only the first one."""

    findings: tuple[FlowFinding, ...]

    @override
    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def bounded(findings: Iterable[FlowFinding]) -> list[FlowFinding]:
    """Return findings, mistakes before warnings and in the order of their places.

    If there are more than `MOST_FINDINGS`, the last one says how many are not listed.
    """
    ordered_findings = sorted(findings, key=lambda f: (f.level, f.file, _place_of(f.pointer)))
    if len(ordered_findings) <= MOST_FINDINGS:
        return ordered_findings
    listed_findings, other_findings = (
        ordered_findings[: MOST_FINDINGS - 1],
        ordered_findings[MOST_FINDINGS - 1 :],
    )
    problem = f"{len(other_findings)} more findings are not listed"
    return [
        *listed_findings,
        FlowFinding(
            other_findings[0].file, "", problem, "Correct these first", other_findings[0].level
        ),
    ]


def _place_of(pointer: str) -> list[tuple[int, str]]:
    """Return the steps of a pointer in an order in which ``/nodes/2`` is before ``/nodes/10``."""
    return [(int(step) if step.isdecimal() else -1, step) for step in pointer.split("/")]


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer of a place."""
    escaped_steps = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return "".join(f"/{step}" for step in escaped_steps)


@dataclass(slots=True)
class FindingList:
    """The findings of a document so far. `file` is the document's name in them."""

    file: str
    items: list[FlowFinding] = field(default_factory=list)
    compared_pairs: int = 0
    """Pairs of characters that the searches for like names have compared."""

    def suggestion(self, name: str, known_names: Collection[str], otherwise: str) -> str:
        """Return the remedy for an unknown name: the known name most like it, or `otherwise`.

        `otherwise` is the remedy, too, when the document's searches have compared `MOST_COMPARED`. Without that
        limit many unknown names among many known ones would take minutes.
        """
        from difflib import get_close_matches  # noqa: PLC0415 - only needed for a mistake

        cost = len(name) * sum(map(len, known_names))
        if self.compared_pairs + cost > MOST_COMPARED:
            return otherwise
        self.compared_pairs += cost
        matches = get_close_matches(name, known_names, n=1)
        return f"Is it {matches[0]!r}?" if matches else otherwise

    def add(self, problem: str, remedy: str, *path: str | int) -> None:
        """Add a mistake at a place."""
        self.items.append(FlowFinding(self.file, pointer(*path), problem, remedy))

    def warn(self, problem: str, remedy: str, *path: str | int) -> None:
        """Add a warning at a place."""
        self.items.append(FlowFinding(self.file, pointer(*path), problem, remedy, "warning"))

    def warnings(self) -> list[FlowFinding]:
        """Return the warnings, ordered by place, if there is no mistake.

        Raises:
            FlowError: There are mistakes. The error has the mistakes and the warnings, at most `MOST_FINDINGS`.
        """
        findings = bounded(self.items)
        if findings and findings[0].level == "error":
            raise FlowError(tuple(findings))
        return findings
