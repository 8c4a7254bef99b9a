"""Numbers of HTTP requests: each field of a query or a body has a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import pytest

import compose._web.agui.endpoint
import compose._web.application
import compose._web.pages.routes
from compose._web.endpoint import StrictModel

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE: Final = (compose._web.agui.endpoint, compose._web.application, compose._web.pages.routes)
"""The modules that import every model of a request."""


def models_below(model: type[StrictModel]) -> Iterator[type[StrictModel]]:
    """Yield the models of our requests that derive from a model."""
    for derived in model.__subclasses__():
        if derived.__module__.startswith("compose."):
            yield derived
        yield from models_below(derived)


NUMBERS: Final = {
    f"{model.__name__}.{name}": field
    for model in models_below(StrictModel)
    for name, field in model.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_a_request_has_a_range(name: str) -> None:
    """The cases are the fields of all queries and bodies: a new one needs both ends."""
    ends = {end for bound in NUMBERS[name].metadata for end in ("ge", "le") if hasattr(bound, end)}

    assert ends == {"ge", "le"}


def test_the_numbers_of_all_requests_are_found() -> None:
    """The walk finds queries and bodies."""
    assert {"AuditQuery.after", "NewRunJson.priority", "LogQuery.from_seq"} <= NUMBERS.keys()
    assert len(NUMBERS) > 15
