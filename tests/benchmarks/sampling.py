"""CPU time of a process by function: stacks by SIGPROF, a few hundred a second of CPU, without a tool.

C code counts for the line of Python that called it. Only the main thread is sampled.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

EVERY_S = 0.002
ROOT = Path(__file__).resolve().parents[2]


class Samples:
    """Stacks, counted by function."""

    def __init__(self) -> None:
        self.total = 0
        self._own: Counter[CodeType] = Counter()
        self._all: Counter[CodeType] = Counter()

    def take(self, _: int, frame: FrameType | None) -> None:
        """Count the stack of the main thread, as a signal's handler."""
        self.total += 1
        codes: set[CodeType] = set()
        if frame is not None:
            self._own[frame.f_code] += 1
        while frame is not None:
            codes.add(frame.f_code)
            frame = frame.f_back
        self._all.update(codes)

    def top(self, count: int) -> list[tuple[str, float, float]]:
        """Return functions with most time of their own: name, its share, and that with what it calls."""
        total = self.total or 1
        return [
            (_name(code), own / total, self._all[code] / total)
            for code, own in self._own.most_common(count)
        ]

    def by_module(self, count: int) -> list[tuple[str, float]]:
        """Return the modules with most time of their own."""
        modules: Counter[str] = Counter()
        for code, own in self._own.items():
            modules[_file(code)] += own
        return [(name, own / (self.total or 1)) for name, own in modules.most_common(count)]


@contextmanager
def sampling() -> Iterator[Samples]:
    """Sample while the block lasts; in the main thread alone."""
    samples = Samples()
    before = signal.signal(signal.SIGPROF, samples.take)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _name(code: CodeType) -> str:
    if code.co_filename == "<string>":  # made by `dataclass`: only its fields tell whose it is
        return f"{code.co_name} of {', '.join(code.co_varnames[1:6])}"
    return f"{code.co_qualname} {_file(code)}:{code.co_firstlineno}"


def _file(code: CodeType) -> str:
    path = Path(code.co_filename)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-2:])
