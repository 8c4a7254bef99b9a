"""Origins: checks of a request's Host and Origin, and CORS headers for pages of other sites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from actors.errors import ContractError
from compose.host.own_address import is_own_address
from compose.web.problems import HttpProblem

_ORIGIN: Final = re.compile(
    r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?"
)
_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer",
    "access-control-max-age": "600",
}
"""Headers without credentials: pages of other sites send bearer tokens, never cookies."""
_EXPOSED: Final = "Location, Preference-Applied, Retry-After, WWW-Authenticate"


def checked_origins(given: Sequence[str], option: str = "--cors-origin") -> frozenset[str]:
    """Return the origins that an option named, such as ``https://shop.example``.

    Raises:
        ContractError: A text is not an origin. A wildcard is not an origin either.
    """
    for one in given:
        if not _ORIGIN.fullmatch(one):
            remedy = (
                "give scheme, host and port as browsers write them, such as https://shop.example"
            )
            raise ContractError(f"{option} {one}: not an origin; {remedy}")
    return frozenset(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The origins whose pages may send requests.

    Attributes:
        allowed: Origins of other sites whose pages may send requests, with a bearer token.
        is_loopback: Answer only requests whose Host is this machine's own address.
    """

    allowed: frozenset[str] = frozenset()
    is_loopback: bool = False

    def problem(self, request: Request) -> HttpProblem | None:
        """Return why a request is refused for its Host or Origin; None if it is allowed."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self.is_loopback and not is_own_address(host):
            problem = f"the request's host is {host!r}, which is not this machine's own address"
            return HttpProblem(403, "foreign_host", problem, "send it to 127.0.0.1 or localhost")
        if origin is not None and authority_of(origin) != host and origin not in self.allowed:
            problem = "a page of another site may not send requests"
            remedy = "send it from a program or a server, or allow the site: callboard serve --cors-origin"
            return HttpProblem(403, "foreign_origin", problem, remedy, origin)
        return None

    def preflight(self, request: Request) -> Response | None:
        """Return the response to a CORS preflight request; None if the request is not one."""
        is_asked = "access-control-request-method" in request.headers
        if request.method != "OPTIONS" or not is_asked:
            return None
        return Response(status_code=204, headers=dict(_PREFLIGHT))

    def show(self, request: Request, response: Response) -> Response:
        """Add CORS headers to a response, so that a page of an allowed site can read it."""
        if self.allowed:
            response.headers.add_vary_header("Origin")
        origin = request.headers.get("origin")
        if origin in self.allowed:
            response.headers["access-control-allow-origin"] = origin
            response.headers["access-control-expose-headers"] = _EXPOSED
        return response


def authority_of(origin: str) -> str | None:
    """Return host and port of an origin; None if the text cannot be parsed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
