"""Routes of the pages: their endpoints, and their scripts and styles."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from compose.web.pages.chat import PAGES as CHAT
from compose.web.pages.graphs.flows import DRAWING
from compose.web.pages.graphs.routes import GRAPH_PAGES
from compose.web.pages.html import Assets
from compose.web.problems import HttpProblem

STATIC: Final = "/static/{version}/{name}"


async def static(request: Request) -> Response:
    """Return a script or a style."""
    found = Assets.load().response(request, **request.path_params)
    if found is not None:
        return found
    problem = HttpProblem(404, "not_found", "there is no such file", "reload the page")
    return problem.response(request.scope)


PAGES: Final = (*CHAT, *GRAPH_PAGES, DRAWING)
ROUTES: Final = [Route(STATIC, static, methods=["GET"])]

__all__ = ["PAGES", "ROUTES"]
