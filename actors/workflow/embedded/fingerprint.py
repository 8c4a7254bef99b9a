"""Identities of those who act: a name that is the same for the same facts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from actors.kernel.json import canonical_json
from actors.kernel.workflow.durable import durable_copy


@dataclass(frozen=True, slots=True)
class ActorFingerprint:
    """An identity.

    Attributes:
        actor_id: Its name, made of the others: ``ar_`` and 24 hexadecimal digits.
        kind: For example ``agent`` or ``human``.
        display_name: For people.
        metadata: More facts: JSON data.
    """

    actor_id: str
    kind: str
    display_name: str
    metadata: dict[str, Any]

    @classmethod
    def from_metadata(
        cls, *, kind: str, display_name: str = "", **metadata: Any
    ) -> ActorFingerprint:
        """Return the identity of these facts; the same ones have the same `actor_id`."""
        clean = durable_copy(metadata, "metadata")
        told = canonical_json([kind, display_name, clean])
        digest = hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:24]
        return cls(f"ar_{digest}", kind, display_name, clean)
