"""Runs the gate's tests several times, each in another random order, beside busy loops: `poe repeat`.

A test that fails in one round and passes in another is a defect of the test or of the product. The
seed repeats the order of its worker's tests: `pytest --randomly-seed=SEED TEST`. Costly tests take turns:
two rounds have all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
_SEEDS: Final = 2**32


def workers() -> list[str]:
    """Return pytest's options in the task `tests`, up to its own reports."""
    tasks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["poe"]["tasks"]
    command: str = tasks["tests"]["cmd"]
    return [word for word in command.split()[1:] if not word.startswith("--slowest")]


def failed_tests(output: str) -> list[str]:
    """Return the ids of the failed tests from pytest's summary, each once."""
    lines = (line.split(maxsplit=1) for line in output.splitlines())
    names = [words[1] for words in lines if words[:1] in (["FAILED"], ["ERROR"]) and words[1:]]
    return list(dict.fromkeys(name.partition(" - ")[0] for name in names))


def table(failed: Mapping[str, Sequence[int]], rounds: int) -> list[str]:
    """Return one line for each test: the number of rounds in which it failed, its id, and their seeds."""
    rows = sorted(failed.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        f"{len(seeds)} of {rounds}  {test}  seeds {' '.join(map(str, seeds))}"
        for test, seeds in rows
    ]


@contextlib.contextmanager
def load(loops: int) -> Iterator[None]:
    """Keep this many busy loops running inside the block."""
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # a signal may end this process alone
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def play(seed: int, turn: int, log: Path, arguments: Sequence[str]) -> tuple[list[str], str]:
    """Run pytest once, with its output in `log`; return the failed tests and pytest's last line."""
    argv = [sys.executable, "-m", "pytest", "-q", *workers(), f"--randomly-seed={seed}", *arguments]
    with log.open("w") as output:
        env = {**os.environ, "CALLBOARD_TEST_TURN": str(turn)}
        done = subprocess.run(argv, cwd=ROOT, stdout=output, stderr=output, check=False, env=env)
    text = log.read_text(errors="replace")
    failed = failed_tests(text)
    if done.returncode and not failed:
        failed = [f"(no test: pytest ended with {done.returncode}, see {log})"]
    return failed, (text.strip().splitlines() or [""])[-1]


def main() -> int:
    """Run all rounds; the exit code is 1 if a test failed in any of them."""
    parser = argparse.ArgumentParser(
        prog="poe repeat", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("rounds", type=int, help="how often the tests are played")
    parser.add_argument("--load", type=int, default=0, help="so many busy loops run beside them")
    parser.add_argument(
        "--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder for pytest's output"
    )
    options, arguments = parser.parse_known_args()
    failed: defaultdict[str, list[int]] = defaultdict(list)
    with load(options.load):
        for number in range(1, options.rounds + 1):
            seed, began = secrets.randbelow(_SEEDS), time.monotonic()
            log = options.logs / f"callboard-repeat-{number}-{seed}.log"
            names, last = play(seed, number, log, arguments)
            took = time.monotonic() - began
            _say(f"round {number} of {options.rounds}: {took:.0f} s, {last}, {log}")
            for name in names:
                failed[name].append(seed)
                _say(f"  failed: {name}")
    for line in table(failed, options.rounds) or [f"no test failed in {options.rounds} rounds"]:
        _say(line)
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
