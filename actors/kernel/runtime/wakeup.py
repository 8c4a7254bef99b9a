"""Causes that resume a suspended run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from actors.kernel.json import JsonValue as Json
from actors.kernel.runtime.ids import RunId


class Wakeup(BaseModel):
    """A cause that resumes a run.

    Attributes:
        kind: What happened.
        at: The instant, for a timer.
        signal: The signal's name.
        payload: The signal's data.
        source_run: The run that caused it.
        child_run: The child that ended.
        result_ref: Reference of the child's stored result, if it is large.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["message", "timer", "signal", "child_done"]
    at: AwareDatetime | None = None
    signal: str | None = None
    payload: dict[str, JsonValue] = Field(default_factory=dict)
    source_run: str | None = None
    child_run: str | None = None
    result_ref: str | None = None


@dataclass(frozen=True, slots=True)
class WakeSet:
    """Everything a suspended run waits for; any one of it wakes the run.

    Attributes:
        at: The earliest timer, aware UTC.
        signals: Names of signals.
        message: Whether plain messages wake it (`ctx.receive`).
        runs: Keys of answers (`Answer.key`) that wake it.
    """

    at: datetime | None = None
    signals: tuple[str, ...] = ()
    message: bool = False
    runs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Return the stored form; empty parts are left out."""
        data: dict[str, Json] = {}
        if self.at is not None:
            data["at"] = self.at.isoformat()
        if self.signals:
            data["signals"] = list(self.signals)
        if self.message:
            data["message"] = True
        if self.runs:
            data["runs"] = list(self.runs)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> WakeSet:
        """Return the value that `to_json` stored."""
        at, signals, runs = data.get("at"), data.get("signals"), data.get("runs")
        return cls(
            at=datetime.fromisoformat(at) if isinstance(at, str) else None,
            signals=tuple(str(s) for s in signals) if isinstance(signals, list) else (),
            message=bool(data.get("message")),
            runs=tuple(str(r) for r in runs) if isinstance(runs, list) else (),
        )


class SignalBus(Protocol):
    """Named, buffered signals to runs, and timers."""

    async def signal(self, run_id: RunId, name: str, payload: dict[str, Json]) -> None:
        """Wake a run waiting for `name`, or keep the signal until it waits.

        Signals of one name arrive in order; each is consumed once.
        """

    async def timer(self, run_id: RunId, at: datetime) -> None:
        """Wake the run at `at` (at once when that has passed); dropped when the run ends."""
