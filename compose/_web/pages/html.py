"""HTML responses: templates, models' answers, and the pages' scripts and styles.

Headers keep a page from executing or loading foreign content, and the Markdown of models is reduced to harmless
elements. Scripts and styles are read once; their URLs have a version that changes with them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import nh3
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from typing_extensions import override

from compose._web.endpoint import WebApi, WebEndpoint
from compose._web.problems import HttpProblem

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
MAX_MARKDOWN: Final = 64 * 1024
"""Maximum number of characters to render. Longer text is shown as plain text: rendering could take seconds."""
_TAGS: Final = {
    *("a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"),
    *("ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}}
_SCHEMES: Final = {"http", "https", "mailto"}
_MARKDOWN: Final = (
    MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
)
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_YEAR_S: Final = 31_536_000
FOLDER: Final = Path(__file__).parent / "static"


class PageEndpoint(WebEndpoint):
    """An endpoint of a page. Its problems are pages, too."""

    @override
    def _refusal(self, api: WebApi, request: Request, problem: HttpProblem) -> Response:
        """Return the problem as a page; redirect a client without a login to the login page."""
        if problem.status == HTTPStatus.UNAUTHORIZED and api.sign_in is not None:
            base, path = request.scope.get("root_path", ""), quote(request.scope["path"])
            return RedirectResponse(f"{base}{api.sign_in}?next={path}", HTTPStatus.SEE_OTHER)
        response = page(request, "problem.html", status=problem.status, problem=problem)
        response.headers.update(problem.headers)
        return response


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page rendered from a template and values."""
    shared_values = {
        "base": str(request.scope.get("root_path", "")),
        "version": Assets.load().version,
    }
    text = _environment().get_template(template).render({**shared_values, **values})
    body, headers = text.encode("utf-8", "replace"), dict(HEADERS)
    takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
    if takes_gzip and len(body) >= _LEAST_COMPRESSED:
        body, headers["content-encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return Response(body, status, headers, media_type="text/html")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "part": part_of_path,
        "short": _short_id,
        "markdown": html_of_markdown,
        "json": shown_json,
        "exact": _exact,
        "size": _size,
    }
    return environment


def part_of_path(text: str) -> str:
    """Return a name as one part of a path, URL-encoded."""
    return quote(text, safe="")


def shown_json(value: object) -> str:
    """Return a value as JSON for people, cut after `MAX_JSON` characters.

    It is on one line if that has at most 80 characters, else indented.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not isinstance(value, str) and len(text) > _LINE:
        text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_JSON else f"{text[:MAX_JSON]}…"


def _short_id(text: str) -> str:
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


@lru_cache(maxsize=1024)
def html_of_markdown(text: str) -> Markup:
    """Render a text as HTML that cannot execute or load anything, or imitate a part of the page.

    Images are not loaded, because their server would learn who reads the page.
    """
    if len(text) > MAX_MARKDOWN:
        return Markup('<pre class="plain">{}</pre>').format(text)
    clean = nh3.clean(
        _MARKDOWN.render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # noqa: S704 - cleaned by nh3


@dataclass(frozen=True, slots=True)
class Assets:
    """The files of scripts and styles.

    Attributes:
        version: A digest of all files.
        files: The compressed bytes by file name.
    """

    version: str
    files: dict[str, bytes]

    @classmethod
    @cache
    def load(cls) -> Assets:
        """Return the files of the package."""
        contents = {
            file.name: file.read_bytes()
            for file in sorted(FOLDER.iterdir())
            if file.suffix in _TYPES
        }
        digest = hashlib.sha256()
        for name, data in contents.items():
            digest.update(name.encode() + b"\0" + data)
        files = {name: gzip.compress(data, mtime=0) for name, data in contents.items()}
        return cls(digest.hexdigest()[:16], files)

    def response(self, request: Request, version: str, name: str) -> Response | None:
        """Return a file; None if no file has this name.

        If the URL has another version, because another process wrote it, this process's file is sent as not
        cacheable.
        """
        data = self.files.get(name)
        if data is None:
            return None
        cache_control = (
            f"public, max-age={_YEAR_S}, immutable" if version == self.version else "no-store"
        )
        headers = {
            "content-type": _TYPES[Path(name).suffix],
            "cache-control": cache_control,
            "x-content-type-options": "nosniff",
            "vary": "accept-encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(data, headers={**headers, "content-encoding": "gzip"})
        return Response(gzip.decompress(data), headers=headers)
