"""Buffered signals of one run: read when first asked for, again when somebody says there are more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from actors.errors import ContractError
from actors.kernel.json import recordable
from actors.kernel.runtime.commit import SignalKey
from actors.runtime.lookout import Lookout

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import BufferedSignal
    from actors.kernel.runtime.ids import RunId
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.run_log import RunLog

RESERVED: Final = "~"
"""How the names of an operator's signals begin; agents cannot wait for them."""

RESOLVE: Final = "~resolve:"
"""With a position: how an operator decides an effect in doubt there."""

RETRY: Final = "~retry"
"""The reserved signal that starts a parked run anew."""


def refuse_reserved(name: str) -> None:
    """Return if agents and callers may use this signal name.

    Raises:
        ContractError: It is an operator's: see `Runtime.resolve`.
    """
    if name.startswith(RESERVED):
        msg = f"signal name {name!r} is reserved: names must not start with {RESERVED!r}"
        raise ContractError(msg)


def resolution(
    position: str | None, action: Literal["value", "retry", "fail"], *, value: Any, error: str
) -> tuple[str, JsonValue]:
    """Return name and payload of the signal that decides for a parked run. See `Runtime.resolve`.

    Raises:
        NotSerializableError: `value` is not JSON data.
    """
    decision: dict[str, JsonValue] = {"action": action}
    if action == "value":
        decision["value"] = recordable(value, where=f"value for {position}")
    elif action == "fail":
        decision["error"] = error
    return RETRY if position is None else f"{RESOLVE}{position}", decision


class Signals:
    """What was signalled to a run and is not consumed. Taking one rides with the next flush."""

    def __init__(self, store: RunStore, run_id: RunId, log: RunLog) -> None:
        self._store = store
        self._run_id = run_id
        self._log = log
        self._buffer: list[BufferedSignal] = []
        self._taken: set[SignalKey] = set()
        self._lookout = Lookout(is_current=False)

    def poke(self) -> None:
        """There may be new ones."""
        self._lookout.poke()

    async def take(self, name: str) -> BufferedSignal | None:
        """Consume and return the oldest signal of this name, or None."""
        await self.refresh()
        return self.take_now(name)

    async def refresh(self) -> None:
        """Read what has come. A second branch waits for what the first one reads."""
        await self._lookout.refresh(self._read)

    async def _read(self) -> None:
        found = await self._log.reading(self._store.signals(self._run_id))
        self._buffer = [s for s in found if SignalKey(s.name, s.n) not in self._taken]

    def is_there(self, name: str) -> bool:
        """Whether `take_now` would find one."""
        return any(signal.name == name for signal in self._buffer)

    def take_now(self, name: str) -> BufferedSignal | None:
        """Consume and return the oldest signal of this name that was read, or None."""
        for index, signal in enumerate(self._buffer):
            if signal.name == name:
                key = SignalKey(signal.name, signal.n)
                del self._buffer[index]
                self._taken.add(key)
                self._log.take_signal(key)
                return signal
        return None
