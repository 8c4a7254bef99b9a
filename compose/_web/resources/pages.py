"""Pages of lists: page sizes, and positions in lists as text."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.waits import WaitPlace
from actors._kernel.stores.conversations import SessionPlace
from actors._kernel.text import is_name
from actors.errors import InvalidNameError
from compose._web.endpoint import StrictModel
from compose._web.problems import HttpProblem, ProblemError

MOST: Final = 500
Limit = Annotated[int, Field(ge=1, le=MOST)]
"""Number of items of a page."""
_SEPARATOR: Final = "\n"


class Paged(StrictModel):
    """The query of a list. `after` is `next` of the previous page."""

    limit: Limit = 100
    after: str | None = None


class PagedOfApp(Paged):
    """The query of a list of an app's items."""

    app: str | None = None


class OfApp(StrictModel):
    """The app of the session that the path names; the server's own app by default."""

    app: str | None = None


def place_text(position: SessionPlace) -> str:
    """Return a position as a page's `next`."""
    return _encode(position.last_at, str(position.agent_id))


def parse_place(text: str) -> SessionPlace:
    """Return the position that `place_text` encoded.

    Raises:
        ProblemError: `place_text` cannot have returned this text.
    """
    last_at, [agent] = _decode(text, 1)
    try:
        return SessionPlace(last_at, AgentId.parse(agent))
    except InvalidNameError:
        raise _bad_cursor(text) from None


def wait_place_text(position: WaitPlace) -> str:
    """Return a position as a page's `next`."""
    return _encode(*position)


def parse_wait_place(text: str) -> WaitPlace:
    """Return the position that `wait_place_text` encoded.

    Raises:
        ProblemError: `wait_place_text` cannot have returned this text.
    """
    since, [run_id, position, key] = _decode(text, 3)
    return WaitPlace(since, RunId(run_id), position, key)


def _encode(at: datetime, *names: str) -> str:
    text = _SEPARATOR.join((at.isoformat(), *names))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(text: str, count: int) -> tuple[datetime, list[str]]:
    """Return the instant and the names that `_encode` encoded.

    Raises:
        ProblemError: The text is not of this form, or the names are invalid.
    """
    try:
        padded_text = text.encode("ascii") + b"=" * (-len(text) % 4)
        instant_text, *names = base64.urlsafe_b64decode(padded_text).decode().split(_SEPARATOR)
        instant = datetime.fromisoformat(instant_text)
    except ValueError:
        raise _bad_cursor(text) from None
    if instant.tzinfo is None or len(names) != count or not all(map(is_name, names)):
        raise _bad_cursor(text)
    return instant, names


def _bad_cursor(text: str) -> ProblemError:
    remedy = "give `next` of the previous page, or leave `after` out"
    return ProblemError(
        HttpProblem(400, "bad_cursor", "`after` is not the `next` of a page", remedy, text)
    )
