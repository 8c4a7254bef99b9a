"""The rules of CONTRIBUTING.md that no linter holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors", "broker", "persistence", "compose")
DRIVERS = {"asyncpg", "msgpack", "nats", "obstore", "redis"}
CORE_DEPENDENCIES = {
    # pydantic and opentelemetry-api, with what they bring along.
    "annotated_types",
    "opentelemetry",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
}
TASK_STARTERS = {"create_task", "ensure_future", "gather", "wait_for"}
MAY_START_TASKS = {
    "actors/_runtime/loop/tasks.py",
    "persistence/_background.py",  # may not import the runtime
}
HAS_SUCH_VERBS = {
    "self._scopes",
    "self._ctx",
}  # ctx.gather opens branches of a run, not loose tasks
HOME_OF_SOMEBODY = re.compile(rb"(?<![\w.*-])/(?:work|root|home|Users)/[\w.]")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(file: Path) -> ast.Module:
    """The file, parsed once."""
    return ast.parse(file.read_text(), str(file))


def product_files() -> list[Path]:
    """Every module that ships."""
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def all_files() -> list[Path]:
    """Every module of the repository."""
    tests = (file for file in (ROOT / "tests").rglob("*.py") if "_evidence" not in file.parts)
    return [*product_files(), *sorted(tests), ROOT / "dev.py"]


def place(file: Path, node: ast.AST | None = None) -> str:
    """Where something stands, for a message."""
    line = f":{getattr(node, 'lineno', 0)}" if node is not None else ""
    return file.relative_to(ROOT).as_posix() + line


def protocol_methods(file: Path) -> Iterator[tuple[str, FunctionNode]]:
    """Every method that a Protocol of the module declares, with its qualified name."""
    for node in ast.walk(tree_of(file)):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases):
            for member in node.body:
                if isinstance(member, FunctionNode) and not member.name.startswith("__"):
                    yield f"{node.name}.{member.name}", member


def in_order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """The order of `__all__`: constants, classes, the rest; numbers by value (as ruff's RUF022)."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    parts = re.split(r"(\d+)", name)
    return kind, [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """The code, run by a fresh interpreter in the repository."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def import_all_of_actors(refused: str) -> subprocess.CompletedProcess[str]:
    """Import all of `actors`; what `refused`, an expression over `name`, names is missing."""
    return run_python(f"""
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if {refused}:
            raise ModuleNotFoundError("refused: " + name, name=name)
sys.meta_path.insert(0, Refuse())
import actors
def fail(name): raise
for module in pkgutil.walk_packages(actors.__path__, "actors.", onerror=fail):
    importlib.import_module(module.name)
""")


def test_every_package_lists_its_names_in_order() -> None:
    """Each `__init__.py` with names has a sorted `__all__` that names each once."""
    wrong = []
    for file in (path for path in product_files() if path.name == "__init__.py"):
        for node in tree_of(file).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and target.id == "__all__":
                assert isinstance(node, ast.Assign)
                names = ast.literal_eval(node.value)
                if list(names) != sorted(set(names), key=in_order):
                    wrong.append(place(file, node))

    assert wrong == []


def test_actors_imports_no_driver() -> None:
    """Every module of `actors` can be imported where no driver is installed."""
    done = import_all_of_actors(f"top in {DRIVERS!r}")

    assert done.returncode == 0, done.stderr


def test_actors_needs_only_pydantic_and_the_opentelemetry_api() -> None:
    """Every module of `actors` can be imported with the two core dependencies alone."""
    allowed = CORE_DEPENDENCIES | {"actors"}
    sdk = "name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))"
    done = import_all_of_actors(
        f"{sdk} or top not in {allowed!r} | sys.stdlib_module_names and not name.startswith('_')"
    )

    assert done.returncode == 0, done.stderr


def test_every_protocol_method_of_the_kernel_is_documented() -> None:
    """The contract of a Protocol is in its docstrings, so each method has one."""
    undocumented = [
        f"{place(file, method)} {name}"
        for file in (ROOT / "actors" / "_kernel").rglob("*.py")
        for name, method in protocol_methods(file)
        if not ast.get_docstring(method)
    ]

    assert undocumented == []


def test_tasks_start_in_one_module_only() -> None:
    """`create_task` and its like appear only where every task has an owner."""
    starts = [
        f"{place(file, node)} {node.attr}"
        for file in product_files()
        if place(file) not in MAY_START_TASKS
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute)
        and node.attr in TASK_STARTERS
        and ast.unparse(node.value) not in HAS_SUCH_VERBS
    ]
    imports = [
        f"{place(file, node)} {alias.name}"
        for file in product_files()
        if place(file) not in MAY_START_TASKS
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio"
        for alias in node.names
        if alias.name in TASK_STARTERS
    ]

    assert starts + imports == []


def test_no_file_names_a_place_on_a_developers_machine() -> None:
    """Nothing that is committed holds an absolute path of a developer's or CI's machine."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    matches = [
        place(file)
        for file in files
        if file.is_file()
        if HOME_OF_SOMEBODY.search(file.read_bytes())
    ]

    assert matches == []


@pytest.mark.item(36)
def test_nobody_reaches_into_a_scheduler() -> None:
    """No attribute that begins with an underscore is read off anything called a scheduler."""
    reads = [
        place(file, node)
        for file in all_files()
        if "scheduler" in file.read_text().lower()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute)
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if "scheduler" in ast.unparse(node.value).rpartition(".")[2].lower()
    ]

    assert reads == []
