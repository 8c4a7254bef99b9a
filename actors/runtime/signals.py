"""Buffered signals of one run: read when first asked for, again when somebody says there are more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from actors.errors import ContractError
from actors.kernel.json import recordable
from actors.kernel.runtime.commit import SignalKey
from actors.kernel.runtime.decisions import RESERVED, RESOLVE
from actors.runtime.lookout import Lookout

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import BufferedSignal
    from actors.kernel.runtime.ids import RunId
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.run_log import RunLog


def refuse_reserved(name: str) -> None:
    """Return if agents and callers may use this signal name.

    Raises:
        ContractError: It is an operator's: see `Runtime.resolve`.
    """
    if name.startswith(RESERVED):
        msg = f"signal name {name!r} is reserved: names must not start with {RESERVED!r}"
        raise ContractError(msg)


def resolution(action: Literal["value", "retry", "fail"], *, value: Any, error: str) -> JsonValue:
    """Return the payload of a decision for a parked run. See `Runtime.resolve`.

    Raises:
        NotSerializableError: `value` is not JSON data.
    """
    decision: dict[str, JsonValue] = {"action": action}
    if action == "value":
        decision["value"] = recordable(value, where="value of the effect in doubt")
    elif action == "fail":
        decision["error"] = error
    return decision


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

    async def decision(self, position: str, seq: int) -> BufferedSignal | None:
        """Consume what operators decided at `position`; return what they did about the entry `seq`.

        What is about another entry came too late, or from a release that did not say: it is dropped.
        """
        found = None
        while (signal := await self.take(f"{RESOLVE}{position}")) is not None:
            found = signal if signal.about == seq else found
        return found

    async def refresh(self) -> None:
        """Read what has come. A second branch waits for what the first one reads."""
        await self._lookout.refresh(self._read)

    async def _read(self) -> None:
        found = await self._log.reading(lambda: self._store.signals(self._run_id))
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
