"""Import paths of the release before, which docs named: each gives the module that has its names now.

`docs/history/moved.tsv` has all paths that have changed. Those that no page named are not understood any more.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from typing_extensions import override

MOVED: Final = {
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
