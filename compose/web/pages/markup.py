"""Answers of models as HTML: rendered Markdown, reduced to harmless elements."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

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
