"""What this package needs of a scope for background tasks; `actors.runtime.tasks.TaskScope` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType


class Tasks(Protocol):
    """Tasks that end with the block at the latest; one that raises is logged."""

    def start(self, coro: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Start `coro`; it is cancelled when the scope ends."""
        ...

    async def __aenter__(self) -> Self:
        """Open the scope."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel all tasks and wait until they have ended."""
        ...
