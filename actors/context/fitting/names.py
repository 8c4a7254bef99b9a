"""Names of tools and ids of calls that a provider accepts.

A name or id that the provider accepts stays. Another one is replaced by one that is made of it, so that every
request has the same one, and the provider's cache holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from actors.context.fitting.rules import ProviderRules

_ODD: Final = re.compile(r"[^a-zA-Z0-9_]")
_HASH: Final = 8
"""Characters of the hash that distinguishes names which would otherwise be equal."""
_ID_HASH: Final = 24


def names_for(
    rules: ProviderRules, declared: Iterable[str], called: Iterable[str]
) -> dict[str, str]:
    """Return the provider's names by ours, of tools that a request declares or that its turns call."""
    made: dict[str, str] = {}
    used: set[str] = set()
    every = list(dict.fromkeys((*declared, *called)))
    for name in every:
        if rules.tool_name.fullmatch(name):
            made[name] = name
            used.add(name)
    for name in every:
        if name not in made:
            made[name] = _name_for(name, rules, used)
            used.add(made[name])
    return made


def fitted_name(name: str, rules: ProviderRules) -> str:
    """Return the provider's name of a schema."""
    return name if rules.tool_name.fullmatch(name) else _name_for(name, rules, set())


def _name_for(name: str, rules: ProviderRules, used: set[str]) -> str:
    plain = _ODD.sub("_", name) or "unnamed"
    if not rules.tool_name.fullmatch(plain[:1]):
        plain = f"tool_{plain}"
    short = plain[: rules.name_length]
    if short == plain and short not in used:
        return short
    return f"{plain[: rules.name_length - _HASH - 1]}_{_hash(name, _HASH)}"


class CallIds:
    """Ids of the calls of one request, in the order of the request.

    A result gets the id of the last call before it that has the result's id and no result yet.
    """

    def __init__(self, rules: ProviderRules) -> None:
        self._rules = rules
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, list[str]] = {}
        self._places: dict[str, int] = {}

    def of_call(self, id_: str) -> str:
        """Return the provider's id of the next call."""
        n = self._counts[id_] = self._counts.get(id_, 0) + 1
        sent = id_
        if n > 1 or id_ in self._used or not self._rules.call_id.fullmatch(id_):
            sent = self._made(f"{id_}\n{n}")
        self._used.add(sent)
        self._places[sent] = len(self._places)
        self._waiting.setdefault(id_, []).append(sent)
        return sent

    def of_result(self, id_: str) -> str:
        """Return the provider's id of the call to which the next result belongs."""
        waiting = self._waiting.get(id_)
        return waiting.pop(0) if waiting else self._made(id_)

    def place_of(self, sent: str) -> int:
        """Return the place of a call among all calls, by the provider's id. Some providers go by the order."""
        return self._places.get(sent, len(self._places))

    def next_answer(self) -> None:
        """Forget calls without a result: the next results belong to the next answer."""
        self._waiting.clear()

    def _made(self, id_: str) -> str:
        digest = _hash(id_, _ID_HASH)
        made = f"call_{digest}"
        return made if self._rules.call_id.fullmatch(made) else digest[:9]


def _hash(text: str, length: int) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]


def by_sent_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return our names by those of the provider that differ from them."""
    return {sent: name for name, sent in names.items() if sent != name}
