"""Reader of flow documents in JSON or YAML. It reports all mistakes at once.

A workflow file of another system, which none of our formats reads, is refused by the system's name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import ValidationError

from actors._workflow.documents.document import KINDS, MEANINGS, FlowDocument
from actors._workflow.documents.findings import FlowError, FlowFinding, bounded, pointer

LARGEST: Final = 8 * 2**20
"""Maximum size of a document, in bytes."""
LARGEST_YAML: Final = 2 * 2**20
"""Maximum size of a document in YAML, in bytes. Its parser takes seconds of CPU for a MiB."""
DEEPEST: Final = 100
"""Maximum depth of a document, in levels."""
_YAML: Final = (".yaml", ".yml")
ENDINGS: Final = (".json", *_YAML)
"""The suffixes of documents' file names."""
_SCALARS: Final = (
    ("null", re.compile(r"(?:null|~|)$"), ["n", "~", ""]),
    ("bool", re.compile(r"(?:true|false)$"), list("tf")),
    ("int", re.compile(r"-?(?:0|[1-9][0-9]*)$"), list("-0123456789")),
    (
        "float",
        re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$"),
        list("-0123456789"),
    ),
)
"""The YAML scalars that are not texts. They are the same as in JSON."""


def read_flow(
    source: str | Path | bytes | Mapping[str, Any], *, file: str | None = None
) -> FlowDocument:
    """Read a flow document. The compiler checks its ways and expressions later.

    Raises:
        FlowError: The source is not a flow document.
        OSError: The file cannot be read.
    """
    name = file or name_of(source)
    return document_of(read_data(source, name), name)


def document_of(data: Any, name: str) -> FlowDocument:
    """Return JSON data, called `name` in findings, as a flow document.

    Raises:
        FlowError: The data is not a flow document.
    """
    try:
        return FlowDocument.model_validate(data)
    except ValidationError as exc:
        findings = [_finding(name, error, data) for error in exc.errors(include_url=False)]
        raise FlowError(tuple(bounded(findings))) from None


def read_data(source: str | Path | bytes | Mapping[str, Any], name: str) -> Any:
    """Return the JSON data of a file or of bytes, called `name` in findings.

    Raises:
        FlowError: The data cannot be read, is too large or has too many levels.
        OSError: The file cannot be read.
    """
    data = dict(source) if isinstance(source, Mapping) else _parse(source, name)
    _check_depth(data, name)
    if (system := foreign_system(data)) is not None:
        problem = (
            f"it is a workflow of {system[0]}, which is neither a flow document nor a VisualFlow"
        )
        raise _refusal(name, problem, system[1])
    return data


def name_of(source: object) -> str:
    """Return the name of a source in findings: its path, or ``flow``."""
    return str(source) if isinstance(source, str | Path) else "flow"


def _parse(source: str | Path | bytes, name: str) -> Any:
    if isinstance(source, bytes):
        raw = source
    else:
        with Path(source).open("rb") as stream:
            # One byte more than is allowed shows that a file is too large, without reading the rest of it.
            raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        problem = f"it has more than {LARGEST // 2**20} MiB"
        raise _refusal(name, problem, "Divide it into flows, and call them as flow nodes")
    if str(source if not isinstance(source, bytes) else name).endswith(_YAML):
        return _parse_yaml(raw, name)
    try:
        return json.loads(raw, object_pairs_hook=_unique_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        is_deep = isinstance(exc, RecursionError)
        problem = "it is too deep" if is_deep else f"it is no JSON: {exc}"
        raise _refusal(name, problem, "Correct it there") from None


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated_name = _first_repeated(name for name, _ in pairs)
        raise ValueError(f"{repeated_name!r} is there twice in one object")
    return values


def _first_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that comes again; None if there is none."""
    counts = Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _parse_yaml(raw: bytes, name: str) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an optional dependency
    except ImportError:
        problem = "YAML needs PyYAML, which is not installed"
        raise _refusal(name, problem, "Install callboard[flows], or write JSON") from None

    if len(raw) > LARGEST_YAML:
        problem = f"it has more than {LARGEST_YAML // 2**20} MiB, which YAML's parser reads slowly"
        raise _refusal(name, problem, "Write it as JSON")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Loader that reads YAML as JSON is read: names are texts, ``no`` is a text, a date is a text.

        It refuses aliases, which make a huge document of a small text, and names that an object has twice.
        """

        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise yaml.YAMLError(f"aliases are not read (line {line})")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            line = node.start_mark.line + 1
            if not all(isinstance(key, str) for key in keys):
                raise yaml.YAMLError(f"a name is no text (line {line})")
            if (repeated_name := _first_repeated(keys)) is not None:
                raise yaml.YAMLError(
                    f"{repeated_name!r} is there twice in one object (line {line})"
                )
            values = (self.construct_object(value, deep=deep) for _, value in node.value)
            return dict(zip(keys, values, strict=True))

    for tag, pattern, first in _SCALARS:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", pattern, first)
    try:
        return yaml.load(raw, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        reason = " ".join(str(exc).split()) or type(exc).__name__
        raise _refusal(name, f"it is not YAML: {reason}", "Correct it there") from None


def _check_depth(data: Any, name: str) -> None:
    # Level by level: a recursion would itself fail for data that is too deep.
    level = [data]
    for _ in range(DEEPEST):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise _refusal(name, f"it has more than {DEEPEST} levels", "Make it flatter")


def _refusal(name: str, problem: str, remedy: str) -> FlowError:
    return FlowError((FlowFinding(name, "", problem, remedy),))


def _finding(name: str, error: Any, data: Any) -> FlowFinding:
    """Return pydantic's error as a finding, with the place in the document and a remedy."""
    steps = list(error["loc"])
    is_in_node = len(steps) > 2 and steps[0] == "nodes" and steps[2] in KINDS  # noqa: PLR2004
    if is_in_node:
        del steps[2]
    if steps and steps[-1] == "[key]":
        steps.pop()
    json_pointer = pointer(*steps)
    match error["type"]:
        case "extra_forbidden":
            return FlowFinding(
                name, json_pointer, f"{steps[-1]!r} is no word here", "Remove it, or correct it"
            )
        case "missing":
            return FlowFinding(name, json_pointer, f"{steps[-1]!r} is missing", "Add it")
        case "union_tag_not_found" | "union_tag_invalid":
            kinds_text = ", ".join(KINDS)
            node = data
            for step in steps:
                node = node[step]
            kinds = [kind for kind in KINDS if isinstance(node, dict) and kind in node]
            problem = f"it has {' and '.join(kinds) or 'no kind'}"
            return FlowFinding(name, json_pointer, problem, f"Give it exactly one of {kinds_text}")
        case "string_pattern_mismatch":
            meaning = MEANINGS[error["ctx"]["pattern"]]
            return FlowFinding(
                name, json_pointer, f"{error['input']!r} cannot stand here", f"Give {meaning}"
            )
    message = error["msg"].removeprefix("Value error, ")
    return FlowFinding(name, json_pointer, f"{message[0].lower()}{message[1:]}", "Correct it")


_DRAW: Final = "Write it as a flow document; docs/graphs/coming-from.md compares the words"
_AGENT: Final = "Write it as a flow document or an agent; docs/graphs/documents.md has the format"


def foreign_system(data: Any) -> tuple[str, str] | None:
    """Return the system whose workflow this JSON data is and the remedy, or None if no system is recognised."""
    if isinstance(data, list):
        is_red = bool(data) and all(isinstance(node, dict) and "wires" in node for node in data[:3])
        return ("Node-RED", _AGENT) if is_red else None
    if not isinstance(data, Mapping) or "flow" in data:  # a flow document names its format
        return None
    return next(((name, remedy) for name, is_its, remedy in _SYSTEMS if is_its(data)), None)


def _is_langflow(data: Mapping[str, Any]) -> bool:
    inner = data.get("data")
    if isinstance(inner, Mapping) and isinstance(inner.get("nodes"), list):
        return "edges" in inner
    return _first(data, "nodes").get("type") == "genericNode"


def _is_n8n(data: Mapping[str, Any]) -> bool:
    node = _first(data, "nodes")
    kind = node.get("type")
    is_its = isinstance(kind, str) and ("n8n-nodes" in kind or "typeVersion" in node)
    return is_its or (
        isinstance(data.get("nodes"), list) and isinstance(data.get("connections"), Mapping)
    )


def _first(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the first object of the list `name`, or an empty one if there is none."""
    items = data.get(name)
    first = items[0] if isinstance(items, list) and items else None
    return first if isinstance(first, Mapping) else {}


_SYSTEMS: Final[tuple[tuple[str, Callable[[Mapping[str, Any]], bool], str], ...]] = (
    ("LangFlow", _is_langflow, _AGENT),
    ("Flowise", lambda data: _first(data, "nodes").get("type") == "customNode", _AGENT),
    ("n8n", _is_n8n, _AGENT),
    ("Conductor", lambda data: "taskReferenceName" in _first(data, "tasks"), _DRAW),
    (
        "Serverless Workflow",
        lambda data: (
            (isinstance(data.get("document"), Mapping) and "dsl" in data["document"])
            or ("states" in data and "specVersion" in data)
        ),
        _DRAW,
    ),
    (
        "Dify",
        lambda data: isinstance(data.get("workflow"), Mapping) and "graph" in data["workflow"],
        _AGENT,
    ),
    (
        "Amazon States Language",
        lambda data: "StartAt" in data and isinstance(data.get("States"), Mapping),
        _DRAW,
    ),
    (
        "ComfyUI",
        lambda data: (
            bool(data)
            and all(
                isinstance(node, Mapping) and "class_type" in node
                for node in list(data.values())[:3]
            )
        ),
        _AGENT,
    ),
)
"""Systems by name, each with the test of its files and the remedy."""
