"""Tests that run in forked workers have the results that they have without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import os, pathlib, pytest
from tests.harness import forked

def pytest_addoption(parser):
    parser.addoption("--workers", type=forked.number, default=0)

def pytest_configure(config):
    forked.register(config)

@pytest.fixture(scope="session")
def server():
    yield os.getpid()
    with open("ended", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
TESTS = """
import os, signal, warnings, pytest

@pytest.mark.parametrize("number", range(40))
def test_good(number, server, tmp_path):
    print("said", number)
    assert server == os.getpid() and not list(tmp_path.iterdir())

def test_bad():
    print("what it says")
    assert 1 == 2

@pytest.fixture
def broken():
    yield
    raise OSError("the teardown")

def test_teardown(broken):
    pass

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass

def test_warning():
    warnings.warn("beware", stacklevel=1)

@pytest.mark.parametrize("number", range(3))
def test_dead(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with tests."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    )
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str]:
    """Run pytest in the folder; return its exit code and its output."""
    plugins = ("-p", "no:randomly", "-p", "no:schemathesis", "-p", "no:cacheprovider")
    argv = [sys.executable, "-m", "pytest", "-q", "-rs", *plugins, *words]
    env = {"PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_workers_report_all_that_happens(folder: Path) -> None:
    """A worker that is killed fails the test that it ran, and no other; each stops its servers."""
    code, output = run(folder, "--workers", "3")
    assert code == 1
    assert "2 failed, 44 passed, 1 skipped, 1 warning, 1 error" in output
    assert "worker" in output
    assert "ended with -9 in this test" in output
    assert "test_dead[1]" in output
    assert "what it says" in output
    assert "OSError: the teardown" in output
    assert "Warning: beware" in output
    assert "said 1" not in output
    pids = (folder / "ended").read_text().split()
    assert pids
    assert len(pids) == len(set(pids))


def test_a_run_ends_at_its_first_failure(folder: Path) -> None:
    """Workers get no more tests after it."""
    code, output = run(folder, "--workers", "2", "-x", "-k", "bad or skipped")
    assert (code, "stopping after 1 failures" in output) == (1, True)
