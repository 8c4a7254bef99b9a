"""A table of what providers accept in a request, by pydantic-ai's names of providers.

The values are those of the providers' API references and error messages. A provider that is not in the table
gets the strictest common rules, because most of them pass requests on to models with chat templates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
