"""Answers of models as HTML: what they mean is shown, and nothing of it acts."""

from __future__ import annotations

import pytest

from compose._web.pages.html import MAX_MARKDOWN, html_of_markdown
from tests.harness.elements import Elements


def elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return what an answer becomes."""
    return Elements(str(html_of_markdown(text))).found


def test_markdown_becomes_html() -> None:
    """Lists, tables, code and emphasis are shown as what they are."""
    tags = [
        tag
        for tag, _ in elements("# a\n\n1. **b**\n\n|x|\n|-|\n|y|\n\n```py\nz\n```\n> q\n\n~~s~~")
    ]

    assert {"h1", "ol", "li", "strong", "table", "td", "pre", "code", "blockquote", "s"} <= {*tags}


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '<a href="javascript:alert(1)">x</a>',
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:x)",
        "![x](https://elsewhere.example/pixel.png)",
        "<style>*{display:none}</style>",
        '<p style="position:fixed" onclick="x()" id="composer" class="told">x</p>',
        "<form action=/v1><input name=a></form>",
        "<iframe src=//elsewhere.example></iframe>",
        "<svg><script>1</script></svg>",
        "<math><mtext></p><style><img src=x onerror=alert(1)></style>",
        "```\n</code></pre><script>1</script>\n```",
        '[x](https://a.example "\\" onmouseover=alert(1)")',
    ],
)
def test_nothing_of_an_answer_acts(text: str) -> None:
    """No element runs, loads or hides anything; no attribute but of a link, and none that names an element."""
    for tag, attributes in elements(text):
        assert tag in {"p", "a", "pre", "code"}, text
        assert {*attributes} <= {"href", "title", "rel"}, text
        assert str(attributes.get("href", "https://")).startswith(("https://", "http://"))


def test_a_link_tells_its_target_nothing() -> None:
    """The other site neither gets a hold of this page nor learns its address."""
    [_, (tag, attributes)] = elements("[x](https://a.example)")

    assert tag == "a"
    assert attributes["rel"] == "noopener noreferrer nofollow"


def test_a_very_long_answer_is_shown_as_it_is() -> None:
    """Nothing is made of it, and nothing of it acts."""
    text = "<script>" + "*x* " * MAX_MARKDOWN

    assert [tag for tag, _ in elements(text)] == ["pre"]
