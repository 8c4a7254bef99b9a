"""HTML responses: templates, and headers that keep a page from executing or loading foreign content."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from typing_extensions import override

from compose.web.endpoint import WebApi, WebEndpoint
from compose.web.pages.assets import Assets
from compose.web.pages.markup import html_of_markdown
from compose.web.problems import HttpProblem

TEMPLATES: Final = Path(__file__).parent / "templates"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept-encoding",
}
MAX_JSON: Final = 8_000
"""Maximum number of characters of a value on a card."""
_SHORT: Final = 8
_LINE: Final = 80
_LEAST_COMPRESSED: Final = 1024


class PageEndpoint(WebEndpoint):
    """An endpoint of a page. Its problems are pages, too."""

    @override
    def _refusal(self, api: WebApi, request: Request, problem: HttpProblem) -> Response:
        """Return the problem as a page; redirect a client without a login to the login page."""
        if problem.status == HTTPStatus.UNAUTHORIZED and api.sign_in is not None:
            base, here = request.scope.get("root_path", ""), quote(request.scope["path"])
            return RedirectResponse(f"{base}{api.sign_in}?next={here}", HTTPStatus.SEE_OTHER)
        response = page(request, "problem.html", status=problem.status, problem=problem)
        response.headers.update(problem.headers)
        return response


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page rendered from a template and values."""
    shared = {"base": str(request.scope.get("root_path", "")), "version": Assets.load().version}
    text = _environment().get_template(template).render({**shared, **values})
    body, headers = text.encode("utf-8", "replace"), dict(HEADERS)
    is_taken = "gzip" in request.headers.get("accept-encoding", "")
    if is_taken and len(body) >= _LEAST_COMPRESSED:
        body, headers["content-encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return Response(body, status, headers, media_type="text/html")


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "part": part_of_path,
        "short": _short,
        "markdown": html_of_markdown,
        "json": shown_json,
        "exact": _exact,
        "size": _size,
    }
    return found


def part_of_path(text: str) -> str:
    """Return a name as one part of a path, URL-encoded."""
    return quote(text, safe="")


def shown_json(value: object) -> str:
    """Return a value as JSON for people, cut after `MAX_JSON` characters."""
    text = value if isinstance(value, str) else _dumped(value)
    return text if len(text) <= MAX_JSON else f"{text[:MAX_JSON]}…"


def _dumped(value: object) -> str:
    """Return a value as JSON on one line if that has at most 80 characters, else indented."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    if len(line) <= _LINE:
        return line
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _short(text: str) -> str:
    """Return an id in short form. An agent's id keeps its type."""
    type_, slash, key = text.rpartition("/")
    return text if len(key) <= 2 * _SHORT else f"{type_}{slash}{key[:_SHORT]}…"


def _exact(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - a unit
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
