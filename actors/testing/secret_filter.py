"""Removal of secrets from what is written to a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

REMOVED: Final = "[removed]"
"""Written in place of a secret."""
MIN_LENGTH: Final = 8
"""Shorter values of the environment are no secrets: removing them would spoil the text."""

_NAMED_SECRET: Final = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$|^CALLBOARD_SECRET_"
)
_LOGIN: Final = re.compile(
    r"(^|[_-])(authorization|api[_-]?key|key|token|secret|password|cookie|credentials)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SecretFilter:
    """The values that are removed, longest first."""

    values: tuple[str, ...]

    @classmethod
    def of(cls, environment: Mapping[str, str], secrets: Sequence[str]) -> Self:
        """Return the filter of these secrets, and of those that an environment holds by its names."""
        named = {
            value
            for name, value in environment.items()
            if _NAMED_SECRET.search(name) and len(value) >= MIN_LENGTH
        }
        values = {value for value in (*named, *secrets) if value}
        return cls(tuple(sorted(values, key=lambda value: (-len(value), value))))

    def cleaned(self, data: Any) -> Any:
        """Return JSON data without the values, in keys as well as in texts."""
        match data:
            case str():
                for value in self.values:
                    data = data.replace(value, REMOVED)
                return data
            case dict():
                return {self.cleaned(key): self.cleaned(value) for key, value in data.items()}
            case list():
                return [self.cleaned(value) for value in data]
            case _:
                return data

    def without_logins(self, options: Any) -> Any:
        """Return options without the values of keys that are named like a login, such as ``authorization``."""
        match options:
            case dict():
                return {
                    key: REMOVED if _LOGIN.search(str(key)) else self.without_logins(value)
                    for key, value in options.items()
                }
            case list():
                return [self.without_logins(value) for value in options]
            case _:
                return options
