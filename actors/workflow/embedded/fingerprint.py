"""Identities of actors: ids that are equal for equal facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.kernel.workflow.durable import durable_copy, json_digest


@dataclass(frozen=True, slots=True)
class ActorFingerprint:
    """An identity.

    Attributes:
        actor_id: The id, derived from the other attributes: ``ar_`` and 24 hexadecimal digits.
        kind: For example ``agent`` or ``human``.
        display_name: A name for people to read.
        metadata: Further facts, as JSON data.
    """

    actor_id: str
    kind: str
    display_name: str
    metadata: dict[str, Any]

    @classmethod
    def from_metadata(
        cls, *, kind: str, display_name: str = "", **metadata: Any
    ) -> ActorFingerprint:
        """Return the identity of these facts. Equal facts have the same `actor_id`."""
        clean = durable_copy(metadata, "metadata")
        digest = json_digest([kind, display_name, clean])
        return cls(f"ar_{digest[:24]}", kind, display_name, clean)
