"""Imports: the names of a package are loaded when they are first used; paths that moved are understood.

A program that needs one light module of a package, such as a service that only sends messages, does not load
the others, nor what they need.
`docs/history/moved.tsv` has all paths that have changed. Those of the release before are still understood.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast


def lazy_exports(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

    Args:
        package: Its name.
        homes: Names that it exports, by the module they come from.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        # Without a path Python looks for no module below this one, so old paths below it would not be found.
        if name == "__path__":
            return []
        if name not in home_of:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(home_of[name]), name)

    return get


MOVED: Final = {
    "actors.agents.tasks": "actors._agents.tools",
    "actors.kernel.agent.llm": "actors._kernel.agent.models",
    "actors.kernel.agent.model_registry": "actors._kernel.agent.models",
    "actors.kernel.storage": "actors._kernel.stores",
    "actors.kernel.storage.erasure": "actors._kernel.stores.administration",
    "actors.kernel.storage.graph": "actors._kernel.stores.data",
    "actors.kernel.storage.history": "actors._kernel.stores.conversations",
    "actors.kernel.storage.vector": "actors._kernel.stores.data",
    "actors.storage": "actors._inmemory",
    "actors.storage.artifacts": "actors._inmemory.artifacts",
    "actors.storage.blobs": "actors._inmemory.artifacts",
    "actors.storage.boards": "actors._inmemory.boards",
    "actors.storage.files": "actors._inmemory.artifacts",
    "actors.storage.graphs": "actors._inmemory.knowledge",
    "actors.storage.identity": "actors._inmemory.sessions",
    "actors.storage.vectors": "actors._inmemory.knowledge",
    "actors.workflow.actor": "actors._workflow.hosted",
    "actors.workflow.memory": "actors._workflow.notes",
    "actors.workflow.memory.evidence": "actors._workflow.notes.evidence",
    "persistence.postgres.stores": "persistence._postgres.data",
    "persistence.postgres.stores.artifacts": "persistence._postgres.data.artifacts",
}
"""The module now, by its path in the release before."""
_ROOMS: Final[Mapping[str, str]] = {
    "actors": "agents context exports inmemory kernel runtime sessions testing workflow",
    "broker": "client client_errors errors gateway mail nats nats_client wire",
    "persistence": "background files migrate objects postgres redis run_locks schema_files sqlite",
    "compose": "assembly cli commands completion diagnosis embedded host mcp models tools web",
}
"""Rooms of each package whose names had no underscore in the release before."""
_PUBLIC: Final = frozenset(
    f"{package}.{name}"
    for package, names in {
        "actors": "agents context sessions testing workflow workflow.bundles workflow.installed"
        " workflow.integrations",
        "broker": "client",
        "compose": "embedded mcp models web",
        "persistence": "files objects postgres redis sqlite",
    }.items()
    for name in names.split()
)
"""Old paths that are public modules now, each with the names of its room."""


def path_now(path: str) -> str | None:
    """Return where the module of an old path is; None if the path is no old one."""
    if path in MOVED:
        return MOVED[path]
    parent, _, name = path.rpartition(".")
    if not parent:
        return None
    if parent in _ROOMS:
        return f"{parent}._{name}" if name in _ROOMS[parent].split() else None
    new = path_now(parent)
    return None if new is None else f"{new}.{name}"


def understand_moved_paths() -> None:
    """Let `import` understand old paths, with a `DeprecationWarning`."""
    if not any(isinstance(finder, _MovedPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedPaths())


class _MovedPaths:
    # No base class: `importlib.abc` would take longer than all else of `import actors`.
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = None if fullname in _PUBLIC else path_now(fullname)
        if new is None:
            return None
        from importlib.util import find_spec  # noqa: PLC0415 - takes longer than all else of this module

        return None if find_spec(new) is None else ModuleSpec(fullname, cast("Any", self))

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = path_now(module.__name__)
        assert new is not None
        # The frames of importlib are not counted: 2 is the line with the import.
        warnings.warn(
            f"{module.__name__} is now {new}; the old path goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        # One module under two names, not two modules: else each class would exist twice.
        sys.modules[module.__name__] = import_module(new)
