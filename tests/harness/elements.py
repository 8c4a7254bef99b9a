"""The elements of a page, as a reader without scripts gets them."""

from __future__ import annotations

from html.parser import HTMLParser

from typing_extensions import override


class Elements(HTMLParser):
    """The elements of a text with their attributes, and the text between them.

    Attributes: found: Tags and attributes, in order. text: The text between tags.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.found.append((tag, dict(attrs)))

    @override
    def handle_data(self, data: str) -> None:
        """Record a text."""
        self.text += data

    def all(self, tag: str, class_: str = "") -> list[dict[str, str | None]]:
        """Return the attributes of the elements of a tag, or only of those with a class."""
        return [
            attributes
            for name, attributes in self.found
            if name == tag and (not class_ or class_ in str(attributes.get("class")).split())
        ]

    def links(self) -> list[str]:
        """Return the targets of links."""
        return [str(link["href"]) for link in self.all("a") if "href" in link]
