"""Become a server: a stand-alone script that sets up its own process, then executes the server.

Run as `python -I -S launch.py SPEC PROGRAM ARGS...`, SPEC being JSON with the keys of
`LaunchSpec`. It replaces `subprocess`'s `preexec_fn`, which is not safe in a process with threads
(and hosts have threads). The process id stays the same through the `exec`.

Only the standard library may be imported here: `-I -S` hides everything else.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import TypedDict, cast

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
EXIT_NOT_LAUNCHED = 86


class LaunchSpec(TypedDict):
    """The set-up of a process before the server starts; every number is an id or a signal."""

    parent_pid: int
    """The owner; when it is gone already, nothing is started."""
    death_signal: int
    """Sent to the server when the owner's launching thread ends. 0: none. Linux only."""
    uid: int | None
    gid: int | None
    """User and group of the server; None keeps the caller."""
    user_namespace: bool
    """True if uid and gid are names for the caller's own ids (Linux), False if they are really changed to."""


def main() -> None:
    """Set up this process as SPEC says and execute the program."""
    spec = cast("LaunchSpec", json.loads(sys.argv[1]))
    program = sys.argv[2:]
    try:
        take_identity(spec)
        follow_parent(spec)
        os.execv(program[0], program)  # noqa: S606 - no shell is wanted
    except OSError as exc:
        sys.stderr.write(f"cannot launch {program[0]}: {exc}\n")
        sys.exit(EXIT_NOT_LAUNCHED)


def take_identity(spec: LaunchSpec) -> None:
    """Stop being root, for a server that refuses to be."""
    uid, gid = spec["uid"], spec["gid"]
    if uid is None or gid is None:
        return
    if not spec["user_namespace"]:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        return
    # Inside the namespace root's files belong to `uid`: nothing has to be given away.
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUSER)")
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{uid} {outer_uid} 1")
    (own / "gid_map").write_text(f"{gid} {outer_gid} 1")


def follow_parent(spec: LaunchSpec) -> None:
    """Ask the kernel to end this process with its owner.

    This comes after the change of identity, which would clear it again.
    """
    if sys.platform != "linux" or not spec["death_signal"]:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, spec["death_signal"], 0, 0, 0)
    if os.getppid() != spec["parent_pid"]:
        sys.exit(EXIT_NOT_LAUNCHED)


if __name__ == "__main__":
    main()
