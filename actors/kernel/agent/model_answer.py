"""Answers of models, as log entries record them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from actors.kernel.agent.llm import Usage
from actors.kernel.json import JsonValue

UNNAMED: Final = "?"
"""The model of an answer whose client has no name that a database takes."""
_MOST: Final = 512
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer as a log has it: the name of the client, and what it used."""

    model: str
    usage: Usage


def answer_of(payload: Mapping[str, JsonValue]) -> ModelAnswer | None:
    """Return the answer that an `llm.call` entry with this payload records; None: it records an error."""
    if payload.get("status") != "ok":
        return None
    model = payload.get("model") or payload.get("name")
    try:
        usage = Usage.model_validate(payload.get("usage") or {})
    except ValidationError:  # a client of an author's own: its answer is a call all the same
        usage = Usage()
    is_name = isinstance(model, str) and 0 < len(model) <= _MOST and "\x00" not in model
    return ModelAnswer(str(model) if is_name else UNNAMED, usage)
