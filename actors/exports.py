"""Imports: the names of a package are loaded when they are first used; paths that moved are understood.

A program that needs one light module of a package, such as a service that only sends messages, does not load
the others, nor what they need.
`docs/history/moved.tsv` has all paths that have changed. Only those that a page named are still understood.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from typing_extensions import override


def lazy_exports(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

    Args:
        package: Its name.
        homes: Names that it exports, by the module they come from.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in home_of:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(home_of[name]), name)

    return get


MOVED: Final = {
    "actors.agents.tasks": "actors.agents.tools",
    "actors.kernel.agent.llm": "actors.kernel.agent.models",
    "actors.kernel.agent.model_registry": "actors.kernel.agent.models",
    "actors.kernel.storage": "actors.kernel.stores",
    "actors.kernel.storage.erasure": "actors.kernel.stores.administration",
    "actors.kernel.storage.graph": "actors.kernel.stores.data",
    "actors.kernel.storage.history": "actors.kernel.stores.conversations",
    "actors.kernel.storage.vector": "actors.kernel.stores.data",
    "actors.storage": "actors.inmemory",
    "actors.storage.artifacts": "actors.inmemory.artifacts",
    "actors.storage.blobs": "actors.inmemory.artifacts",
    "actors.storage.boards": "actors.inmemory.boards",
    "actors.storage.files": "actors.inmemory.artifacts",
    "actors.storage.graphs": "actors.inmemory.knowledge",
    "actors.storage.identity": "actors.inmemory.sessions",
    "actors.storage.vectors": "actors.inmemory.knowledge",
    "actors.workflow.actor": "actors.workflow.hosted",
    "actors.workflow.memory": "actors.workflow.notes",
    "actors.workflow.memory.evidence": "actors.workflow.notes.evidence",
    "persistence.postgres.stores": "persistence.postgres.data",
    "persistence.postgres.stores.artifacts": "persistence.postgres.data.artifacts",
}
"""The module now, by its path in the release before."""


def understand_moved_paths() -> None:
    """Let `import` understand `MOVED`, with a `DeprecationWarning`."""
    if not any(isinstance(finder, _MovedPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedPaths())


class _MovedPaths(MetaPathFinder, Loader):
    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    @override
    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        # The frames of importlib are not counted: 2 is the line with the import.
        warnings.warn(
            f"{module.__name__} is now {new}; the old path goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        # One module under two names, not two modules: else each class would exist twice.
        sys.modules[module.__name__] = import_module(new)
