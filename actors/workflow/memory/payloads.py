"""The payloads of memory effects. A value of the wrong type raises an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.kernel.workflow.durable import normalize_utc_iso
from actors.kernel.workflow.errors import GraphError

_OWN_TAG: Final = "kind"
"""The tag with an artifact's kind. Only the runtime sets it."""


class Payload:
    """The payload of an effect. Each method raises `GraphError` if a value has the wrong type.

    Args:
        name: The effect's type, for errors.
        data: The payload.
    """

    def __init__(self, name: str, data: Mapping[str, Any]) -> None:
        self.name, self._data = name, data

    def get(self, name: str) -> Any:
        """Return a value as it is. None: the payload does not have it."""
        return self._data.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a text without spaces around it, or the default if it is missing or empty."""
        found = self._data.get(name)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self.wrong(name, "is no text")
        return found.strip() or default

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean, or the default if it is missing."""
        found = self._data.get(name)
        if not isinstance(found, bool | None):
            raise self.wrong(name, "is neither true nor false")
        return default if found is None else found

    def count(self, name: str, default: int, *, least: int = 0) -> int:
        """Return a whole number that is at least `least`, or the default if it is missing."""
        found = self._data.get(name)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise self.wrong(name, f"is no whole number from {least} on")
        return found

    def choice(self, name: str, *choices: str) -> str:
        """Return one of these words. If the value is missing, return the first word."""
        found = self.text(name, choices[0]).lower()
        if found not in choices:
            raise self.wrong(name, f"is none of {', '.join(choices)}")
        return found

    def names(self, *names: str) -> tuple[str, ...]:
        """Return the texts and numbers in these fields, each of which has one or a list."""
        told: list[str] = []
        for name in names:
            found = self._data.get(name)
            for one in found if isinstance(found, list) else [] if found is None else [found]:
                if isinstance(one, bool) or not isinstance(one, str | int):
                    raise self.wrong(name, "is neither a text nor a list of texts")
                told.append(str(one))
        return tuple(told)

    def instant(self, name: str) -> str | None:
        """Return an instant in UTC. None: the value is missing."""
        found = self._data.get(name)
        if found is None or found == "":
            return None
        at = normalize_utc_iso(found)
        if at is None:
            raise self.wrong(name, "is no ISO timestamp")
        return at

    def tags(self) -> dict[str, str]:
        """Return the tags to set, without ``kind``, which the runtime sets."""
        found = self.wanted_tags()
        if isinstance(self._data.get("tags"), dict) and any(
            isinstance(one, list) for one in self._data["tags"].values()
        ):
            raise self.wrong("tags", "has a list: a tag has one value")
        return {name: values[0] for name, values in found.items() if name != _OWN_TAG}

    def wanted_tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags to search for. Each has one value, or a list of which one value is enough."""
        found = self._data.get("tags")
        if not isinstance(found, dict | None):
            raise self.wrong("tags", "is no object of texts")
        told = {}
        for name, value in (found or {}).items():
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(one, str | int | float) for one in values):
                raise self.wrong(f"tags.{name}", "is neither a text nor a list of texts")
            told[str(name)] = tuple(map(str, values))
        return told

    def wrong(self, name: str, problem: str) -> GraphError:
        """Return the error for a value."""
        return GraphError(
            f"{self.name}: payload.{name}", f"{self._data.get(name)!r:.100} {problem}"
        )
