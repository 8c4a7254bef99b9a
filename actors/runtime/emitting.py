"""ctx.emit_delta: shown to whoever watches the run now, and kept by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.errors import MessageTooLargeError
from actors.kernel.json import sized
from actors.kernel.runtime.live import MAX_DELTA_BYTES, Delta
from actors.runtime.branch import Doing

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.runtime.recorder import Recorder


class Emitting:
    """The verb that shows something live, of one execution of a run.

    It takes no position and leaves no entry: code may gain it, or lose it, between two executions.
    """

    def __init__(self, recorder: Recorder, tell: Callable[[Delta], None]) -> None:
        self._run, self._tell = recorder, tell
        self._counts: dict[str, int] = {}

    def emit(self, data: Any) -> None:
        """See `RunContext.emit_delta`.

        What an effect shows is numbered at its position, as a model call's pieces are; what the code
        between them shows at the branch's, that of a replay included.
        """
        run = self._run
        branch = run.turnstile.enter("emit_delta")
        what = f"delta of run {run.run_id}"
        clean, size_bytes = sized(data, where=what)
        if size_bytes > MAX_DELTA_BYTES:
            raise MessageTooLargeError(what, size_bytes, MAX_DELTA_BYTES)
        is_effect = branch.doing is Doing.WORK
        position = f"{branch.prefix}{branch.next_index - 1}" if is_effect else branch.prefix
        n = self._counts.get(position, 0)
        self._counts[position] = n + 1
        if run.history.is_replaying() and not is_effect:
            return
        text, other = (clean, None) if isinstance(clean, str) else ("", clean)
        self._tell(
            Delta(
                run_id=run.run_id, agent_id=run.agent_id, attempt=run.history.life,
                position=position, n=n, kind="custom.delta", text=text, data=other,
            )
        )  # fmt: skip
