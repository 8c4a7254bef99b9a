"""A server process: start it, wait until it is ready, stop or kill it. Its output goes to a file.

The user of an embedded PostgreSQL, which refuses root, although many containers run as root.

On Linux root starts the server in a user namespace in which root's files belong to an unprivileged user. So
files keep their owner and their permissions. If that is forbidden (by Docker's default seccomp profile),
the server changes to the unprivileged user, who must have access to the programs and the data.
`CALLBOARD_NO_USERNS=1` forces the second way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from compose._embedded import launch
from compose._embedded.errors import EmbeddedServerMissingError, ServerFailedError

STOP_TIMEOUT_S = 15.0
READY_TIMEOUT_S = 30.0
_READY_POLL_S = 0.02
_LOG_TAIL_BYTES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user of a server process. The default is the caller."""

    uid: int | None = None
    gid: int | None = None
    user_namespace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """The command of a server process, with its log, user, environment and stop signal."""

    name: str
    argv: Sequence[str]
    log: Path
    stop_signal: signal.Signals = signal.SIGTERM
    identity: Identity = field(default_factory=Identity)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the caller's environment."""
    keep_open: Sequence[int] = ()
    """File descriptors that the server inherits, such as the lock on its data directory."""


class Server:
    """A running server process, in a session of its own, so that Ctrl-C does not stop it.

    `stop` shuts it down, and `kill` ends it as in a crash. On Linux it also ends with the process that
    started it, even if that process is killed. All methods block, and may be called from any thread.
    """

    def __init__(self, command: ProcessSpec) -> None:
        self.command = command
        self._exited = threading.Event()
        self._process = self._spawn()

    @property
    def pid(self) -> int:
        """The process id, which is kept after the process has ended."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process has not ended yet."""
        return not self._exited.is_set()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal, or None while the process runs."""
        return self._process.returncode if self._exited.is_set() else None

    def log_tail(self) -> str:
        """Return the last 3000 bytes of the server's log."""
        with contextlib.suppress(FileNotFoundError):
            return self.command.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return ""

    def wait_ready(self, is_ready: Callable[[], bool], timeout: float = READY_TIMEOUT_S) -> None:
        """Wait until `is_ready` returns True. An OSError, ValueError or IndexError of it means "not yet".

        Raises:
            ServerFailedError: The server ended, or was not ready after `timeout` seconds and was
                killed. The error has the end of its log.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.is_running:
                raise self._failure(f"ended with {self.returncode} before it was ready")
            with contextlib.suppress(OSError, ValueError, IndexError):
                if is_ready():
                    return
            self._exited.wait(_READY_POLL_S)
        self.kill()
        raise self._failure(f"was not ready in {timeout:g} s")

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Shut the server down, and kill it after `timeout` seconds. Do nothing if it has ended."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, self.command.stop_signal)
            if not self._exited.wait(timeout):
                self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the server and its child processes, and wait until they have ended."""
        if not self.is_running:
            return
        # SIGSTOP first, so that the server cannot start another child process.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
            children = child_pids(self.pid)
            for pid in [*children, self.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._exited.wait()
            while any(is_alive(pid) for pid in children):
                time.sleep(_READY_POLL_S / 10)
        self._exited.wait()

    def _failure(self, problem: str) -> ServerFailedError:
        return ServerFailedError(self.command.name, problem, self.log_tail())

    def _spawn(self) -> subprocess.Popen[bytes]:
        # The kernel sends the parent-death signal when the THREAD that forked ends. A pool thread may end
        # long before the process, so a thread of its own forks, and then waits for the server.
        process_future: Future[subprocess.Popen[bytes]] = Future()

        def own() -> None:
            try:
                process = popen(self.command, parent_dies_with_us=True)
            except Exception as exc:  # noqa: BLE001 - `born.result()` raises it
                process_future.set_exception(exc)
                return
            process_future.set_result(process)
            process.wait()
            self._exited.set()

        threading.Thread(target=own, name=f"own-{self.command.name}", daemon=True).start()
        try:
            return process_future.result()
        except OSError as exc:
            raise ServerFailedError(self.command.name, f"cannot be started: {exc}", "") from exc


def popen(command: ProcessSpec, *, parent_dies_with_us: bool = False) -> subprocess.Popen[bytes]:
    """Start the command as its user, and append its output to its log."""
    spec: launch.LaunchSpec = {
        "parent_pid": os.getpid(),
        "death_signal": int(command.stop_signal) if parent_dies_with_us else 0,
        "uid": command.identity.uid,
        "gid": command.identity.gid,
        "user_namespace": command.identity.user_namespace,
    }
    launcher = [sys.executable, "-I", "-S", launch.__file__, json.dumps(spec)]
    with command.log.open("ab", buffering=0) as log:
        return subprocess.Popen(
            [*launcher, *command.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, **command.env},
            pass_fds=command.keep_open,
            start_new_session=True,
        )


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_alive(pid: int) -> bool:
    """Return True if the process exists and is not a zombie, which may never be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _proc_stat(pid).split()[:1] != ["Z"]


def child_pids(pid: int) -> list[int]:
    """Return the pids of a process's direct children; empty on a system without /proc."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [child for child in pids if _proc_stat(child).split()[1:2] == [str(pid)]]


def _proc_stat(pid: int) -> str:
    """Return the text after the parenthesised name in /proc/PID/stat (`state ppid ...`), or an empty text."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
    except OSError:
        return ""


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
    programs: Path, data_dir: Path, identity: Identity, *, libraries_name: str
) -> Path:
    """Return a folder of programs that `identity` can execute: the wheel's, or a copy (41 MB) in `data_dir`.

    Args:
        programs: Folder of the programs in the wheel's package.
        data_dir: The data directory, which gets the copy.
        identity: The server's user.
        libraries_name: Name of the folder beside the package that has the programs' libraries.
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
        for folder in (package / "pginstall", package.with_name(libraries_name)):
            inside = partial / folder.relative_to(package.parent)
            shutil.copytree(folder, inside, symlinks=True)
        for path in [partial, *partial.rglob("*")]:
            # The umask or the installer may have removed these permissions.
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
        partial.rename(copy)
    copied_programs = copy / package.name / "pginstall" / "bin"
    if drops_root and _succeeds([str(copied_programs / "postgres"), *version], data_dir, identity):
        return copied_programs
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
