"""Values that are not shown: those whose key contains one of some names, as ``password``."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json, to_json

HIDDEN: Final = "[redacted]"
"""Shown instead of a hidden value."""
DEFAULT_NAMES: Final = "password,token,secret,authorization,api_key"
"""Separated by commas."""
_OPENING: Final = ("{", "[")
MAX_DEPTH: Final = 64
"""Deeper data is not shown."""


class HiddenNames:
    """Names by which values are hidden in traces and in events of sessions.

    Args:
        names: Separated by commas. A value is hidden whose key contains one of them, whatever its case,
            `-` and `_`.
    """

    def __init__(self, names: str = DEFAULT_NAMES) -> None:
        self._names = tuple(bare for name in names.split(",") if (bare := _bare(name)))

    def covers(self, key: object) -> bool:
        """Return whether values under this key are hidden."""
        bare = _bare(str(key))
        return any(name in bare for name in self._names)

    def shown(self, value: Any, *, depth: int = MAX_DEPTH) -> Any:
        """Return JSON data with `HIDDEN` instead of what is not shown, also in texts that are JSON."""
        if isinstance(value, dict):
            return {
                key: HIDDEN if self.covers(key) else self._below(item, depth)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._below(item, depth) for item in value]
        return self._text(value, depth) if isinstance(value, str) else value

    def _text(self, text: str, depth: int) -> str:
        if text.lstrip()[:1] not in _OPENING or not self.covers(text):
            return text
        try:
            value = from_json(text)
        except ValueError:
            return text
        shown = self.shown(value, depth=depth - 1)
        return text if shown == value else to_json(shown).decode()

    def _below(self, value: Any, depth: int) -> Any:
        return self.shown(value, depth=depth - 1) if depth > 1 else HIDDEN


def _bare(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")
