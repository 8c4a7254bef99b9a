"""The project of sessions, which is a folder, and the folder of the user's own files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from actors.sessions.errors import ProjectError

HOME_VARIABLE: Final = "CALLBOARD_HOME"


def project_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a project. Default: the current folder. For a file return its folder.

    Raises:
        ProjectError: The folder does not exist or cannot be opened.
    """
    path = Path.cwd() if given is None else Path(given).expanduser()
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ProjectError(str(given), f"it cannot be opened ({exc})") from exc
    return path if path.is_dir() else path.parent


def project_label(given: str | os.PathLike[str]) -> str:
    """Return the label of a project's sessions. If the folder is not on this machine, `given` is the label."""
    try:
        return str(project_folder(given))
    except ProjectError:
        return os.fspath(given)


def user_home() -> Path:
    """Return the folder of the user's own files: `CALLBOARD_HOME`, else ``~/.callboard``. It is not created."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".callboard"
