"""Rules of providers for requests, by pydantic-ai's names, and names and ids that fit them.

The values are those of the providers' API references and error messages. A provider that is not in the table
gets the strictest common rules, because most of them pass requests on to models with chat templates.

A name of a tool or an id of a call that the provider accepts stays. Another one is replaced by one that is
made of it, so that every request has the same one, and the provider's cache holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

EMPTY_MESSAGE: Final = "(empty message)"
"""Sent for a user's message without content."""
NO_OUTPUT: Final = "(no output)"
"""Sent for a tool's result without text."""
EARLIER: Final = "(earlier turns are left out)"
"""Sent in front of a conversation that begins with an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """Limits of the requests that a provider accepts.

    Attributes:
        call_id: Ids of tool calls. No id may occur twice in a request, whatever the provider.
        tool_name: Names of tools, declared or called.
        name_length: Maximum number of characters of a name.
        takes_blank_text: Text blocks of white space only.
        takes_blank_result: Results of tools without text.
        takes_first_answer: A conversation that begins with an answer of the model.
        takes_equal_roles: Two messages of one role in a row, also if they are not results of tools.
    """

    call_id: re.Pattern[str] = re.compile(r"[a-zA-Z0-9_-]{1,40}")
    tool_name: re.Pattern[str] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    name_length: int = 64
    takes_blank_text: bool = False
    takes_blank_result: bool = False
    takes_first_answer: bool = False
    takes_equal_roles: bool = False


STRICT: Final = ProviderRules()
"""Rules of a provider that is not in the table."""
_OPENAI: Final = ProviderRules(
    call_id=re.compile(r"[!-~]{1,40}"),
    takes_blank_text=True,
    takes_blank_result=True,
    takes_first_answer=True,
    takes_equal_roles=True,
)
_GOOGLE: Final = ProviderRules(
    call_id=re.compile(r"[!-~]{1,64}"),
    tool_name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
    takes_equal_roles=True,
)
RULES: Final[Mapping[str, ProviderRules]] = {
    "openai": _OPENAI,
    "azure": _OPENAI,
    "anthropic": replace(
        STRICT,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,256}"),
        tool_name=re.compile(r"[a-zA-Z0-9_-]{1,128}"),
        name_length=128,
        takes_equal_roles=True,
    ),
    "bedrock": replace(STRICT, call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"), takes_equal_roles=True),
    "google": _GOOGLE,
    "google-cloud": _GOOGLE,
    "mistral": replace(STRICT, call_id=re.compile(r"[a-zA-Z0-9]{9}"), takes_equal_roles=True),
    "cohere": replace(STRICT, tool_name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")),
}


def rules_of(provider: str) -> ProviderRules:
    """Return the rules of a provider."""
    return RULES.get(provider, STRICT)


_ODD: Final = re.compile(r"[^a-zA-Z0-9_]")
_HASH: Final = 8
"""Characters of the hash that distinguishes names which would otherwise be equal."""
_ID_HASH: Final = 24


def names_for(
    rules: ProviderRules, declared: Iterable[str], called: Iterable[str]
) -> dict[str, str]:
    """Return the provider's names by ours, of tools that a request declares or that its turns call."""
    sent_names: dict[str, str] = {}
    used_names: set[str] = set()
    names = list(dict.fromkeys((*declared, *called)))
    for name in names:
        if rules.tool_name.fullmatch(name):
            sent_names[name] = name
            used_names.add(name)
    for name in names:
        if name not in sent_names:
            sent_names[name] = _name_for(name, rules, used_names)
            used_names.add(sent_names[name])
    return sent_names


def fitted_name(name: str, rules: ProviderRules) -> str:
    """Return the provider's name of a schema."""
    return name if rules.tool_name.fullmatch(name) else _name_for(name, rules, set())


def _name_for(name: str, rules: ProviderRules, used_names: set[str]) -> str:
    plain_name = _ODD.sub("_", name) or "unnamed"
    if not rules.tool_name.fullmatch(plain_name[:1]):
        plain_name = f"tool_{plain_name}"
    short_name = plain_name[: rules.name_length]
    if short_name == plain_name and short_name not in used_names:
        return short_name
    return f"{plain_name[: rules.name_length - _HASH - 1]}_{_hash(name, _HASH)}"


class CallIds:
    """Ids of the calls of one request, in the order of the request.

    A result gets the id of the last call before it that has the result's id and no result yet.
    """

    def __init__(self, rules: ProviderRules) -> None:
        self._rules = rules
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}
        self._open_ids: dict[str, list[str]] = {}
        self._positions: dict[str, int] = {}

    def of_call(self, id_: str) -> str:
        """Return the provider's id of the next call."""
        n = self._counts[id_] = self._counts.get(id_, 0) + 1
        sent_id = id_
        if n > 1 or id_ in self._used or not self._rules.call_id.fullmatch(id_):
            sent_id = self._make_id(f"{id_}\n{n}")
        self._used.add(sent_id)
        self._positions[sent_id] = len(self._positions)
        self._open_ids.setdefault(id_, []).append(sent_id)
        return sent_id

    def of_result(self, id_: str) -> str:
        """Return the provider's id of the call to which the next result belongs."""
        open_ids = self._open_ids.get(id_)
        return open_ids.pop(0) if open_ids else self._make_id(id_)

    def place_of(self, sent_id: str) -> int:
        """Return the position of a call among all calls, by its sent id. Some providers go by the order."""
        return self._positions.get(sent_id, len(self._positions))

    def next_answer(self) -> None:
        """Forget calls without a result: the next results belong to the next answer."""
        self._open_ids.clear()

    def _make_id(self, id_: str) -> str:
        digest = _hash(id_, _ID_HASH)
        call_id = f"call_{digest}"
        return call_id if self._rules.call_id.fullmatch(call_id) else digest[:9]


def _hash(text: str, length: int) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]


def by_sent_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return our names by those of the provider that differ from them."""
    return {sent: name for name, sent in names.items() if sent != name}
