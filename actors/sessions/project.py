"""The project of sessions, which is a folder, and the folder of a user's own files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from actors.sessions.errors import ProjectError

HOME_VARIABLE: Final = "CALLBOARD_HOME"


def project_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a project: the present one by default, of a file the one that holds it.

    Raises:
        ProjectError: It is not there.
    """
    path = Path.cwd() if given is None else Path(given).expanduser()
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ProjectError(str(given), f"it cannot be opened ({exc})") from exc
    return path if path.is_dir() else path.parent


def project_label(given: str | os.PathLike[str]) -> str:
    """Return the label that sessions of a project have; one whose folder is not here is its own label."""
    try:
        return str(project_folder(given))
    except ProjectError:
        return os.fspath(given)


def user_home() -> Path:
    """Return the folder of the user's own files: `CALLBOARD_HOME`, else ``~/.callboard``. Not made."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".callboard"
