"""Answers of models as HTML: Markdown, of which only harmless elements are left."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

MAX_MARKDOWN: Final = 64 * 1024
"""Characters; a longer text is shown as it is, for a reader of Markdown may take seconds for it."""
_TAGS: Final = {
    *("a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"),
    *("ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}}
_SCHEMES: Final = {"http", "https", "mailto"}
_MARKDOWN: Final = (
    MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
)


@lru_cache(maxsize=1024)
def html_of_markdown(text: str) -> Markup:
    """Return a text as HTML that cannot run anything, load anything, or look like a part of the page.

    No image is loaded: its request would show its server who reads.
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
    return Markup(clean)  # noqa: S704 - what nh3 has cleaned
