"""Do what the documents show, as a reader would, and keep what the terminal looked like.

python docs/screens/make.py              run it all and write docs/screens/*.svg
python docs/screens/make.py --check      run it all and write nothing; CI does this
python docs/screens/make.py --short --without node      the README alone, and nothing of Node.js

Every ```sh block of the sections below is typed into one bash on a terminal, in an empty folder with a
copy of `examples/`. A comment `# -> text` after a command is a line that it has to print; `…` stands for
anything, and the number of spaces does not count. A command without such a line has to end with 0.
"""

# ruff: noqa: INP001, S607, T201

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
SECTIONS: Final = (("README.md", "From outside"), ("docs/quickstart-operators.md", ""))
"""What is done, in this order; the first is what `--short` does."""
WIDTH: Final = 110
PATIENCE_S: Final = 90.0
"""For one command."""
LIMIT_S: Final = 600.0
SHORT_LIMIT_S: Final = 210.0
"""For all; then everything is ended, which a killed process cannot do."""
END: Final = "\x1e"
"""Printed after each command, twice, around its exit code."""
ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
FONT: Final = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)
"""Of rich's SVG: it names a server to fetch the font from."""
WIPED: Final = re.compile(r"\x1b\[\?25l.*\x1b\[2K", re.DOTALL)
"""Progress that was taken back from the screen when it was over."""


class NotAsShownError(Exception):
    """A command did not do what the document says."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, and the lines that have to be printed then."""

    text: str
    promised: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """One block of a document."""

    name: str
    commands: tuple[Command, ...]


@dataclass(slots=True)
class Screen:
    """What the terminal shows of one scene, with its colours."""

    name: str
    lines: list[str] = field(default_factory=list)


class Terminal:
    """A bash whose output is a terminal of ours."""

    def __init__(self, folder: Path, *, limit_s: float = LIMIT_S) -> None:
        self._ends_at = time.monotonic() + limit_s
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        programs = str(Path(sys.executable).parent)
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=environment(programs),
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._is_stuck = False
        self.type("set -m")  # jobs, as in a shell that somebody types into
        self.type("command -v curl >/dev/null || curl() { " + CURL + "; }")

    def type(self, command: str) -> tuple[str, int]:
        """Run one command; return what was printed, and its exit code."""
        assert self._bash.stdin is not None
        script = f"{{ {command}\n}} </dev/null; printf '{END}%s{END}' $?\n"
        self._bash.stdin.write(script.encode())
        self._bash.stdin.flush()
        said, deadline = "", min(time.monotonic() + PATIENCE_S, self._ends_at)
        while not (found := re.search(f"{END}(\\d+){END}", said)):
            if not select.select([self._master], [], [], max(0, deadline - time.monotonic()))[0]:
                self._is_stuck = True
                raise NotAsShownError(f"{command}\ndid not end in time:\n{said}")
            said += os.read(self._master, 65536).decode(errors="replace")
        return WIPED.sub("", said[: found.start()].replace("\r\n", "\n")), int(found[1])

    def close(self) -> None:
        """End bash and all that it started: in order, and what is stuck by SIGKILL."""
        if not self._is_stuck:
            with contextlib.suppress(NotAsShownError, OSError):
                self.type("jobs -p | xargs -r -n 1 kill 2>/dev/null; wait")
        for pid in members(self._bash.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._bash.wait()
        os.close(self._master)


def members(session: int) -> list[int]:
    """The processes of a session; Linux only, elsewhere its leader alone."""
    found = [session]
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = file.read_text().rpartition(")")[2].split()
            if words[3] == str(session) and file.parent.name != str(session):
                found.append(int(file.parent.name))
    return found


CURL: Final = (
    "python3 -c 'import sys, urllib.request as r; "
    'print(r.urlopen("http://" + sys.argv[-1]).read().decode())\' "$@" 2>/dev/null'
)
"""For machines without curl."""


def environment(programs: str) -> dict[str, str]:
    """What the reader's shell has: the project's programs, and no settings of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD_")}
    path = os.pathsep.join([programs, kept.get("PATH", os.defpath)])
    shown = {"COLUMNS": str(WIDTH), "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    return {**kept, **shown, "PATH": path}


def scenes(document: str, section: str) -> Iterator[Scene]:
    """Yield the shell blocks of a section, each named for the heading above it."""
    text = (ROOT / document).read_text(encoding="utf-8")
    if section:
        text = re.split(rf"^## {section}.*$", text, flags=re.MULTILINE)[1]
        text = re.split(r"^## ", text, flags=re.MULTILINE)[0]
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0]
        name = re.sub(r"[^a-z]+", "-", heading.lower()).strip("-")
        for block in re.findall(r"^```sh\n(.*?)^```", part, re.MULTILINE | re.DOTALL):
            yield Scene(name, tuple(commands(block)))


def commands(block: str) -> Iterator[Command]:
    """Yield the commands of a block with what is promised below each."""
    text, promised = "", []
    for line in block.splitlines():
        if line.startswith("# -> "):
            promised.append(line.removeprefix("# -> "))
        elif text.endswith("\\"):
            text += "\n" + line
        elif line and not line.startswith("#"):
            if text:
                yield Command(text, tuple(promised))
            text, promised = line, []
    if text:
        yield Command(text, tuple(promised))


def play(scene: Scene, terminal: Terminal) -> Screen:
    """Type a scene and return what the terminal shows.

    Raises:
        NotAsShownError: Something that is promised is not printed.
    """
    screen = Screen(scene.name)
    for command in scene.commands:
        said, code = terminal.type(command.text)
        if code and not command.promised:
            raise NotAsShownError(f"{scene.name}: $ {command.text}\nended with {code}:\n{said}")
        lines = [squeezed(line) for line in ESCAPES.sub("", said).splitlines()]
        for promise in command.promised:
            pattern = re.escape(squeezed(promise)).replace("…", ".*")
            if not any(re.fullmatch(pattern, line) for line in lines):
                problem = f"did not print `{promise}` but (exit code {code}):\n{said}"
                raise NotAsShownError(f"{scene.name}: $ {command.text}\n{problem}")
        shown = re.sub(r"\s+# .*$", "", command.text, flags=re.MULTILINE)
        screen.lines += [f"\x1b[1m$ {shown}\x1b[0m", *said.splitlines()]
    return screen


def squeezed(line: str) -> str:
    """The line with single spaces."""
    return " ".join(line.split())


def draw(screen: Screen) -> str:
    """Return the screen as SVG; it needs no font of anybody's server."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi("\n".join(screen.lines)))
        form = FONT.sub("", CONSOLE_SVG_FORMAT)
        return console.export_svg(title=screen.name, code_format=form, unique_id=screen.name)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def run(folder: Path, *, sections: tuple[tuple[str, str], ...], without: set[str]) -> list[Screen]:
    """Do all that these sections of documents show.

    Raises:
        NotAsShownError: See `play`.
    """
    shutil.copytree(
        ROOT / "examples",
        folder / "examples",
        ignore=shutil.ignore_patterns("node_modules", "__pycache__"),
    )
    ports = {"8080": str(free_port()), "8081": str(free_port())}
    limit_s = SHORT_LIMIT_S if len(sections) == 1 else LIMIT_S
    terminal, screens = Terminal(folder, limit_s=limit_s), []
    try:
        for document, section in sections:
            for scene in scenes(document, section):
                text = " ".join(command.text for command in scene.commands)
                if any(re.search(rf"\b{word}\b", text) for word in without):
                    continue
                typed = tuple(
                    Command(replaced(one.text, ports), one.promised) for one in scene.commands
                )
                screens.append(play(Scene(scene.name, typed), terminal))
                print(f"{scene.name}: as shown", flush=True)
    except NotAsShownError:
        for log in sorted(folder.glob("host-*.log")):
            print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
        raise
    finally:
        terminal.close()
    back = {port: shown for shown, port in ports.items()} | {str(folder): "."}
    for screen in screens:
        screen.lines[:] = [replaced(line, back) for line in screen.lines]
    return screens


def replaced(text: str, words: dict[str, str]) -> str:
    """The text with other words."""
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument(
        "--without", action="append", default=[], help="leave out blocks with a word"
    )
    parser.add_argument("--short", action="store_true", help="the README alone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="callboard-screens-", ignore_cleanup_errors=True
    ) as name:
        # PostgreSQL does not run as root: who starts it as root lends it another user's name.
        Path(name).chmod(0o711)
        try:
            sections = SECTIONS[:1] if given.short else SECTIONS
            screens = run(Path(name), sections=sections, without=set(given.without))
        except NotAsShownError as exc:
            print(exc, file=sys.stderr)
            return 1
    if not given.check:
        for screen in screens:
            (Path(__file__).parent / f"{screen.name}.svg").write_text(
                draw(screen), encoding="utf-8"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
