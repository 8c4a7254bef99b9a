"""What `import broker.client` needs, and what lazy packages export."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
ALLOWED: Final = {"actors", "broker", "nats", "nkeys", "nacl", "msgpack", "typing_extensions"}


def test_the_client_needs_nothing_but_nats_py() -> None:
    """It imports where pydantic, asyncpg, redis, OpenTelemetry and the rest are not installed."""
    code = f"""
import sys
ALLOWED = {ALLOWED!r} | sys.stdlib_module_names
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError("refused: " + name, name=name)
sys.meta_path.insert(0, Refuse())
from broker import ActorClient
from broker.client import ActorClient as Same, ClientError
from broker._client.requests import trace_headers
assert ActorClient is Same and trace_headers() == {{}}
ActorClient("nats://127.0.0.1:4222", publisher="crm")
print(*sorted(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "actors._runtime" not in done.stdout.split()
    assert "broker._wire.codec" not in done.stdout.split()


@pytest.mark.parametrize("package", ["actors", "actors.testing", "broker", "compose.models"])
def test_a_lazy_package_exports_what_it_lists(package: str) -> None:
    """Each name of `__all__` is found, and is what type checkers are told it is."""
    module = importlib.import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    exports = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.name[0] != "_" and node.module.split(".")[0] == package.split(".", maxsplit=1)[0]
    }
    exports.pop("lazy_exports", None)
    exports.pop("understand_moved_paths", None)

    assert sorted(exports) == sorted(module.__all__)
    assert all(
        getattr(module, name) is getattr(importlib.import_module(home), name)
        for name, home in exports.items()
    )
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing
