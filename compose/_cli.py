"""The program `callboard`.

`main` imports the commands inside its `try`. The import takes most of a second, and Ctrl-C during it
must not print a traceback.
"""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from compose._commands.app import app, run

__all__ = ["app", "main", "run"]

_INTERRUPTED: Final = 130

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, {"compose._commands.app": ("app", "run")})


def main() -> None:
    """Run the command that the program was started with, and end with its exit code."""
    try:
        code = _obey(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)


def _obey(arguments: list[str]) -> int:
    from compose._host.collector import collect_rarely, loading  # noqa: PLC0415 - see above

    collect_rarely()
    with loading():
        import logging  # noqa: PLC0415

        from compose._commands.app import run  # noqa: PLC0415
        from compose._host.logs import write_logs  # noqa: PLC0415

    level = logging.DEBUG if "--debug" in arguments else logging.WARNING
    write_logs(as_json=False, level=level)
    if isinstance(sys.stdout, TextIOWrapper):
        # Text of agents and clients may have characters that the terminal's encoding does not have.
        codecs.register_error("json-escape", json_escape)
        sys.stdout.reconfigure(errors="json-escape")
    code = 0
    try:
        code = run(arguments)
        sys.stdout.flush()
    except OSError as exc:
        # At exit Python would flush the remaining output again, and print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A closed pipe is no error: its reader, such as `head`, has enough. A full disk is an error.
        if not isinstance(exc, BrokenPipeError):
            code = code or 1
    return code


def json_escape(exc: UnicodeError) -> tuple[str, int]:
    r"""Return the escapes of JSON for characters that an encoding lacks, and the place after them.

    Python's own escapes (``\xe9``, ``\U0001f600``) are not JSON.
    """
    if not isinstance(exc, UnicodeEncodeError):
        raise exc
    units = exc.object[exc.start : exc.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(
        f"\\u{units[offset : offset + 4]}" for offset in range(0, len(units), 4)
    ), exc.end


if __name__ == "__main__":
    main()
