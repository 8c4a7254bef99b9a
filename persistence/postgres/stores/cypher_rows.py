"""Values of Apache AGE: the text of an `agtype`, read as JSON data."""

from __future__ import annotations

import re
from typing import Final

from pydantic_core import from_json

from actors.kernel.json import JsonValue
from actors.kernel.stores.errors import CypherError
from persistence.postgres.stores.cypher_query import ENTITY, RELATIONSHIP

# Matches a whole quoted text, or the suffix that AGE writes after a value that JSON does not have.
_MARKED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\}::(vertex|edge)|::[a-z]+')
_KIND: Final = "\0"
"""The key that marks a vertex or an edge: no text of a database has this character."""


def cypher_value(text: str | None) -> JsonValue:
    """Return a value of a row. Vertices and edges have the fields of `Entity` and `Relationship`.

    Raises:
        CypherError: It is a number that JSON has not.
    """
    if text is None:
        return None
    try:
        return _plain(from_json(_MARKED.sub(_as_json, text), allow_inf_nan=False))
    except ValueError as exc:
        raise CypherError(f"a row has a value that is no JSON: {text[:40]}") from exc


def _as_json(found: re.Match[str]) -> str:
    if found[1]:
        return f', "\\u0000": "{found[1]}"}}'
    return found[0] if found[0].startswith('"') else ""


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(one) for key, one in value.items()}
    kind, properties = plain.pop(_KIND, None), plain.get("properties")
    if kind is None or not isinstance(properties, dict):
        return plain
    own = ("id", "type") if kind == "vertex" else ("id", "type", "source_id", "target_id")
    if plain.get("label") not in {ENTITY, RELATIONSHIP}:
        return plain
    rest = {key: one for key, one in properties.items() if key not in own}
    return {**{key: properties.get(key) for key in own}, "properties": rest}
