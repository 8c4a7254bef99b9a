"""A stand-alone script that sets up its process and then executes a server in it.

Call it as `python -I -S launch.py SPEC PROGRAM ARGS...`. SPEC is JSON with the keys of `LaunchSpec`. The
script replaces `preexec_fn` of `subprocess`, which is not safe in a process with threads, such as a host.
The server has the process id of the script.

This module can import only the standard library, because `-I -S` hides other packages.
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
    """The set-up of a process before the server starts. Each number is an id or a signal."""

    parent_pid: int
    """Process id of the owner. If the owner has ended already, the server is not started."""
    death_signal: int
    """Signal that the server gets when the owner's launching thread ends; 0 for none. Linux only."""
    uid: int | None
    gid: int | None
    """User and group of the server. None keeps those of the caller."""
    user_namespace: bool
    """True if a user namespace maps uid and gid to the caller's ids (Linux), False if the ids are changed."""


def main() -> None:
    """Set up this process by SPEC, and execute the program."""
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
    """Change the user of this process to uid and gid, if they are given."""
    uid, gid = spec["uid"], spec["gid"]
    if uid is None or gid is None:
        return
    if not spec["user_namespace"]:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        return
    # Inside the namespace root's files belong to `uid`, so their owner need not change.
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUSER)")
    own_process = Path("/proc/self")
    (own_process / "setgroups").write_text("deny")
    (own_process / "uid_map").write_text(f"{uid} {outer_uid} 1")
    (own_process / "gid_map").write_text(f"{gid} {outer_gid} 1")


def follow_parent(spec: LaunchSpec) -> None:
    """Ask the kernel to end this process with its owner.

    Call it after `take_identity`, because a change of the user clears this setting.
    """
    if sys.platform != "linux" or not spec["death_signal"]:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, spec["death_signal"], 0, 0, 0)
    if os.getppid() != spec["parent_pid"]:
        sys.exit(EXIT_NOT_LAUNCHED)


if __name__ == "__main__":
    main()
