"""Pages of lists: how many, and from where on."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from actors.errors import InvalidNameError
from actors.kernel.runtime.ids import AgentId
from actors.kernel.storage.session_directory import SessionPlace
from compose.web.endpoint import StrictModel
from compose.web.problems import HttpProblem, ProblemError

MOST: Final = 500
Limit = Annotated[int, Field(ge=1, le=MOST)]
"""Of a page."""
_SEPARATOR: Final = "\n"


class Paged(StrictModel):
    """The query of a list. `after` is `next` of the page before."""

    limit: Limit = 100
    after: str | None = None


class PagedOfApp(Paged):
    """The same of the sessions of an app."""

    app: str | None = None


class OfApp(StrictModel):
    """The app of the session that the path names; the server's own by default."""

    app: str | None = None


def place_text(place: SessionPlace) -> str:
    """Return a place as a page's `next`."""
    text = place.last_at.isoformat() + _SEPARATOR + str(place.agent_id)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def parse_place(text: str) -> SessionPlace:
    """Return the place that `place_text` wrote.

    Raises:
        ProblemError: It did not.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        at, _, agent = base64.urlsafe_b64decode(padded).decode().partition(_SEPARATOR)
        place = SessionPlace(datetime.fromisoformat(at), AgentId.parse(agent))
        if place.last_at.tzinfo is not None:
            return place
    except (ValueError, InvalidNameError):
        pass
    raise _bad(text)


def _bad(text: str) -> ProblemError:
    remedy = "give `next` of the page before, or leave `after` out"
    return ProblemError(
        HttpProblem(400, "bad_cursor", "`after` is no `next` of a page", remedy, text)
    )
