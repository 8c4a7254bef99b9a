"""Secrets by handle: what is recorded, hashed, shown and sent is a name; the value is looked up at the call.

An agent writes `await ctx.step("charge", charge, Secret("STRIPE_KEY"))`. The log, the approval that a
person sees and the trace hold ``{"$secret": "STRIPE_KEY"}``; `charge` gets the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from typing_extensions import override

from actors._kernel.json import JsonValue
from actors.errors import ContractError, InvalidNameError

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_RULE: Final = "1 to 64 of A-Z, 0-9 and '_', the first a letter"


@dataclass(frozen=True, slots=True)
class Secret:
    """The name of a secret, as an argument of `ctx.step` or `ctx.tool`.

    Handles are resolved where they stand as an argument themselves, and nowhere else: not inside lists
    or objects, not in messages, and never where data only looks like one, so that text of a model or of
    an external client cannot ask for a secret.

    Attributes:
        name: Up to 64 of A-Z, 0-9 and ``_``.
    """

    name: str

    def __post_init__(self) -> None:
        if _NAME.fullmatch(str(self.name)) is None:
            raise InvalidNameError("secret", self.name, _RULE)

    @property
    def handle(self) -> JsonValue:
        """The value that is recorded instead of the secret."""
        return {"$secret": self.name}


class UnknownSecretError(ContractError):
    """No secret of this name is known to the host that executes the call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    @override
    def __str__(self) -> str:
        return (
            f"secret {self.name} is not known on this host: set CALLBOARD_SECRET_{self.name}, or put a "
            f"file {self.name} into the folder CALLBOARD_SECRETS_DIR, on every host of the agent"
        )


class SecretProvider(Protocol):
    """The source of a host's secrets."""

    async def get(self, name: str) -> str | None:
        """Return the secret's value, or None if it is unknown. Read for each call, so that it can be rotated.

        Raises:
            Exception: It could not be asked; becomes the error of the call, so it holds no secret.
        """
