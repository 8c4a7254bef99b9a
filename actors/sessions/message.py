"""Messages of users: text and blocks of other content."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from actors.context.turns import NOT_OF_USERS
from actors.kernel.agent.message import ContentBlock


def check_blocks_of_user(content: Sequence[ContentBlock]) -> None:
    """Check that a user may send these blocks.

    Raises:
        ValueError: A block is of a type that only models and tools make.
    """
    for block in content:
        if block.type in NOT_OF_USERS:
            msg = f"a user's message has no block of type {block.type!r}: send text, or media"
            raise ValueError(msg)


class UserMessage(BaseModel):
    """A message of a user, which starts a run of a session.

    Attributes:
        content: Text blocks, and blocks of any other type except `NOT_OF_USERS`, which stay as they are.
        id: The message's id. A second message with the same id in the same session means the same run.
        client: JSON data of the user's program for the agent's code. Its ``tools`` are offered to the model in
            this run, and the program executes their calls, see docs/sessions.md, "Tools of the client".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: tuple[ContentBlock, ...] = Field(min_length=1)
    id: str = Field(default_factory=lambda: secrets.token_hex(16))
    client: dict[str, JsonValue] | None = None

    @field_validator("content")
    @classmethod
    def _is_of_user(cls, content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
        check_blocks_of_user(content)
        return content

    @classmethod
    def of(cls, message: Self | str | Sequence[ContentBlock]) -> Self:
        """Return a message. A text becomes a message with one text block."""
        if isinstance(message, cls):
            return message
        if isinstance(message, str):
            return cls(content=(ContentBlock(type="text", text=message),))
        return cls(content=tuple(message))

    @property
    def text(self) -> str:
        """The texts of its blocks, joined."""
        return "".join(block.text or "" for block in self.content if block.type == "text")

    def payload(self) -> dict[str, JsonValue]:
        """Return the payload for the agent: ``text``, ``content`` if there is other content, and ``client``."""
        first = self.content[0]
        given: dict[str, JsonValue] = {"text": self.text}
        if len(self.content) > 1 or first.type != "text" or first.model_extra:
            given["content"] = [
                block.model_dump(mode="json", exclude_none=True) for block in self.content
            ]
        if self.client is not None:
            given["client"] = self.client
        return given
