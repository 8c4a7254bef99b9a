"""The program `callboard`.

Nothing is imported before `main` watches: loading the rest takes most of a second, and a user
who presses Ctrl-C meanwhile wants no traceback.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from compose.commands.app import app, run

__all__ = ["app", "main", "run"]

_INTERRUPTED: Final = 130

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, {"compose.commands.app": ("app", "run")})


def main() -> None:
    """Run the command that the program was started with, and end with its exit code."""
    try:
        code = _obey(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)


def _obey(arguments: list[str]) -> int:
    from compose.host.collector import collect_rarely, loading  # noqa: PLC0415 - see above

    collect_rarely()
    with loading():
        import logging  # noqa: PLC0415

        from compose.commands.app import run  # noqa: PLC0415
        from compose.host.logs import write_logs  # noqa: PLC0415

    level = logging.DEBUG if "--debug" in arguments else logging.WARNING
    write_logs(as_json=False, level=level)
    if isinstance(sys.stdout, TextIOWrapper):
        # Texts of others may not fit this terminal's encoding, or any.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = 0
    try:
        code = run(arguments)
        sys.stdout.flush()
    except OSError as exc:
        # Python would try to write the remaining output once more, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # The reader of our output closed it, as `head` does: no error, unlike a full disk.
        if not isinstance(exc, BrokenPipeError):
            code = code or 1
    return code


if __name__ == "__main__":
    main()
