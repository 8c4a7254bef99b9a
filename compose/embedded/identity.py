"""The user of an embedded PostgreSQL, which refuses root, although many containers run as root.

On Linux root starts the server in a user namespace in which root's files belong to an unprivileged user. So
files keep their owner and their permissions. If that is forbidden (by Docker's default seccomp profile),
the server changes to the unprivileged user, who must have access to the programs and the data.
`CALLBOARD_NO_USERNS=1` forces the second way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from compose.embedded.errors import EmbeddedServerMissingError
from compose.embedded.server import Identity, ProcessSpec, popen

SERVER_ENV: Mapping[str, str] = {"LC_ALL": "C", "TZ": "UTC"}


def identity_for(data_dir: Path) -> Identity:
    """Return the server's user: the caller, or an unprivileged user if the caller is root."""
    if os.geteuid() != 0:
        return Identity()
    uid, gid = _harmless_account()
    pgdata = data_dir / "pgdata"
    belongs_to_root = not pgdata.exists() or pgdata.stat().st_uid == 0
    if sys.platform == "linux" and belongs_to_root and not os.environ.get("CALLBOARD_NO_USERNS"):
        identity = Identity(uid=uid, gid=gid, user_namespace=True)
        if _succeeds(["/bin/sh", "-c", ":"], data_dir, identity):
            return identity
    return Identity(uid=uid, gid=gid)


def _harmless_account() -> tuple[int, int]:
    import pwd  # noqa: PLC0415 - not on every platform

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            return account.pw_uid, account.pw_gid
    raise EmbeddedServerMissingError(
        "PostgreSQL", "it refuses to run as root and there is no user `postgres` or `nobody`"
    )


def runnable_programs(
    programs: Path, data_dir: Path, identity: Identity, *, libraries: str
) -> Path:
    """Return a folder of programs that `identity` can execute: the wheel's, or a copy (41 MB) in `data_dir`.

    Args:
        programs: Folder of the programs in the wheel's package.
        data_dir: The data directory, which gets the copy.
        identity: The server's user.
        libraries: Name of the folder beside the package that has the programs' libraries.
    """
    drops_root = identity.uid is not None and not identity.user_namespace
    if drops_root:
        _open_path_to(data_dir)
    version = ["--version"]
    if _succeeds([str(programs / "postgres"), *version], data_dir, identity):
        return programs
    copy, package = data_dir / "install", programs.parent.parent
    if drops_root and not copy.exists():
        # The programs find their libraries at ../../../WHEEL.libs from bin/.
        partial = data_dir / "install.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o755)
        for folder in (package / "pginstall", package.with_name(libraries)):
            inside = partial / folder.relative_to(package.parent)
            shutil.copytree(folder, inside, symlinks=True)
        for path in [partial, *partial.rglob("*")]:
            if (
                not path.is_symlink()
            ):  # the umask or the installer may have removed these permissions
                mode = path.stat().st_mode
                path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
        partial.rename(copy)
    copied = copy / package.name / "pginstall" / "bin"
    if drops_root and _succeeds([str(copied / "postgres"), *version], data_dir, identity):
        return copied
    tail = (data_dir / "server.log").read_text(errors="replace")[-500:]
    raise EmbeddedServerMissingError("PostgreSQL", f"its programs do not run here: {tail}")


def _open_path_to(data_dir: Path) -> None:
    """Let another user enter `data_dir`. Raise if that user cannot enter one of its parents."""
    data_dir.chmod(0o711)
    for parent in data_dir.parents:
        if not parent.stat().st_mode & 0o001:
            raise EmbeddedServerMissingError(
                "PostgreSQL",
                f"it may not run as root, and no other user may enter {parent}: "
                "choose another data directory, or do not run as root",
            )


def _succeeds(argv: list[str], data_dir: Path, identity: Identity) -> bool:
    command = ProcessSpec(
        name=argv[0], argv=argv, log=data_dir / "server.log", identity=identity, env=SERVER_ENV
    )
    return popen(command).wait() == 0
