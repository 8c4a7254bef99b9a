"""Facts about models that do not come with an answer: size of the context window, and prices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from actors.kernel.agent.llm import Usage

_DATED: Final = re.compile(r"-(\d{4}-?\d{2}-?\d{2}|latest)$")
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about one model. None: not known.

    Attributes:
        context_window: Tokens that request and answer may have together.
        input_usd: Dollars for a million tokens of a request.
        cached_usd: Dollars for a million tokens read from the prompt cache; None: as `input_usd`.
        cache_written_usd: Dollars for a million tokens written to it; None: as `input_usd`.
        output_usd: Dollars for a million tokens of an answer.
    """

    context_window: int | None = None
    input_usd: float | None = None
    cached_usd: float | None = None
    cache_written_usd: float | None = None
    output_usd: float | None = None

    def cost_usd(self, usage: Usage) -> float | None:
        """Return the cost of a call in dollars; None if a price is not known."""
        if self.input_usd is None or self.output_usd is None:
            return None
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        written_usd = self.input_usd if self.cache_written_usd is None else self.cache_written_usd
        plain = max(0, usage.input - usage.cached - usage.cache_written)
        total = plain * self.input_usd + usage.output * self.output_usd
        return (total + usage.cached * cached_usd + usage.cache_written * written_usd) / _MILLION


FactSource: TypeAlias = Callable[[str], ModelFacts | None]
"""Returns the facts about a model of this name; None: it has none."""


class ModelRegistry:
    """Facts about models by name. What a program registers goes before what the sources know.

    Names are ``provider:model`` or ``model``. A name is looked up as it is, without its provider, and then
    without the date or ``-latest`` at its end.

    Args:
        sources: Sources that are asked, in order, for names that are not registered, such as a price list.
    """

    def __init__(self, *sources: FactSource) -> None:
        self._facts: dict[str, ModelFacts] = {}
        self._sources: Sequence[FactSource] = sources

    def register(self, name: str, facts: ModelFacts) -> None:
        """Keep these facts under this name; they replace earlier ones."""
        self._facts[name] = facts

    def find(self, name: str) -> ModelFacts | None:
        """Return the facts about a model; None if they are not known."""
        for known in _names(name):
            if (facts := self._facts.get(known)) is not None:
                return facts
        found = (facts for source in self._sources if (facts := source(name)) is not None)
        return next(found, None)

    def context_window(self, name: str) -> int | None:
        """Return how many tokens request and answer may have together; None if it is not known."""
        facts = self.find(name)
        return None if facts is None else facts.context_window

    def cost_usd(self, name: str, usage: Usage) -> float | None:
        """Return the cost of a call of this model in dollars; None if its prices are not known."""
        facts = self.find(name)
        return None if facts is None else facts.cost_usd(usage)


def _names(name: str) -> Iterator[str]:
    bare = name.rpartition(":")[2]
    yield name
    yield bare
    yield _DATED.sub("", name)
    yield _DATED.sub("", bare)
