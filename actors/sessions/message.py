"""Messages of users: text, and blocks of other content."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from actors.kernel.agent.message import ContentBlock


class UserMessage(BaseModel):
    """A message of a user, which starts a run of a session.

    Attributes:
        content: Text blocks, and blocks of any other type, which are kept as they are.
        id: Names it: the same id again, in the same session, is the same run.
        client: JSON that the user's program gives with it, for the agent's code. Its ``tools`` are offered to
            the model in this run, and called by the program: see docs/sessions.md, "Tools of the client".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: tuple[ContentBlock, ...] = Field(min_length=1)
    id: str = Field(default_factory=lambda: secrets.token_hex(16))
    client: dict[str, JsonValue] | None = None

    @classmethod
    def of(cls, message: Self | str | Sequence[ContentBlock]) -> Self:
        """Return a message; a text becomes one of a single block."""
        if isinstance(message, cls):
            return message
        if isinstance(message, str):
            return cls(content=(ContentBlock(type="text", text=message),))
        return cls(content=tuple(message))

    @property
    def text(self) -> str:
        """The texts of its blocks together."""
        return "".join(block.text or "" for block in self.content if block.type == "text")

    def payload(self) -> dict[str, JsonValue]:
        """Return what the agent is given: ``text``, ``content`` if there is more than a text, ``client``."""
        first = self.content[0]
        given: dict[str, JsonValue] = {"text": self.text}
        if len(self.content) > 1 or first.type != "text" or first.model_extra:
            given["content"] = [
                block.model_dump(mode="json", exclude_none=True) for block in self.content
            ]
        if self.client is not None:
            given["client"] = self.client
        return given
