"""Cooperative cancellation of one run."""

from __future__ import annotations

from actors.errors import CancellationError


class CancellationToken:
    """Tripped once, seen by everyone who holds it or a child of it."""

    __slots__ = ("_callbacks", "_reason")

    def __init__(self) -> None:
        self._reason: str | None = None
        self._callbacks: list[CancellationToken] = []

    @property
    def is_cancelled(self) -> bool:
        """True if `cancel` was called on this token or on one above it."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """The reason of the cancellation, or an empty text."""
        return self._reason or ""

    def cancel(self, reason: str = "") -> None:
        """Trip the token and its children; the first reason stays."""
        if self._reason is None:
            self._reason = reason
            for child in self._callbacks:
                child.cancel(reason)

    def check(self) -> None:
        """Check that the token is not cancelled.

        Raises:
            CancellationError: Somebody did.
        """
        if self._reason is not None:
            raise CancellationError(self._reason)

    def child(self) -> CancellationToken:
        """Return a token that is tripped with this one but can also be tripped alone."""
        token = CancellationToken()
        self._callbacks.append(token)
        if self._reason is not None:
            token.cancel(self._reason)
        return token
