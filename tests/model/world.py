"""What happens outside the runs of the model: time, arrivals, chance, how often effects executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.harness.simloop import EPOCH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(slots=True)
class Outside:
    """See the module's docstring.

    Attributes:
        arrivals: ``(at, name, payload)`` by time; the name of a signal, or empty for a message.
        values: What chance gave, by position, in order.
        signals: Arrived and not consumed.
        mail: Arrived and not consumed.
    """

    now: float
    arrivals: list[tuple[float, str, Any]]
    executions: dict[str, int]
    values: Mapping[str, Sequence[Any]]
    signals: list[tuple[str, Any]] = field(default_factory=list)
    mail: list[Any] = field(default_factory=list)

    def arrive(self, until: float) -> None:
        """Put into the buffers what arrives up to a time."""
        self.now = max(self.now, until)
        while self.arrivals and self.arrivals[0][0] <= self.now:
            _, name, payload = self.arrivals.pop(0)
            if name:
                self.signals.append((name, payload))
            else:
                self.mail.append(payload)

    @staticmethod
    def iso(seconds: float) -> str:
        """Return the instant as text."""
        return (EPOCH + timedelta(seconds=seconds)).isoformat()
