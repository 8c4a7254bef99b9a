"""The artifacts of memory: notes and archived messages, each stored once. References in them are resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actors.kernel.json import canonical_json
from actors.kernel.workflow.artifacts import ArtifactStore, is_artifact_ref, plain_value
from actors.kernel.workflow.durable import durable_copy
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.variables import CONTEXT

MESSAGES = "messages"


class Archive:
    """The artifacts that an effect reads and writes.

    Args:
        store: The store of the artifacts. None: methods that need it raise an error with the remedy.
        name: The effect's type, for errors.
    """

    def __init__(self, store: ArtifactStore | None, name: str) -> None:
        self._given, self._name = store, name

    def kept(
        self, artifact_id: str, data: Mapping[str, Any], *, run_id: str, tags: Mapping[str, str]
    ) -> dict[str, Any]:
        """Store JSON data under this id, unless the id is in use; return the stored data.

        So if an effect is executed again after a crash, the data of the first execution stays.

        Raises:
            NotSerializableError: The data is not JSON data. Nothing is stored.
            GraphError: The driver has no artifact store.
        """
        there: dict[str, Any] | None = self.load(artifact_id)
        if there is not None:
            return there
        told: dict[str, Any] = durable_copy(dict(data), f"artifact of {self._name}")
        content = canonical_json(told).encode()
        more: dict[str, Any] = {"run_id": run_id, "tags": tags, "artifact_id": artifact_id}
        self._store.store(content, content_type="application/json", **more)
        return told

    def load(self, artifact_id: str) -> dict[str, Any] | None:
        """Return the JSON object in an artifact. None: there is no such artifact, or it has no JSON object.

        Raises:
            GraphError: The driver has no artifact store.
        """
        try:
            found = self._store.load(artifact_id)
            data = None if found is None else found.as_json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            return None
        return data if isinstance(data, dict) else None

    def context_of(self, run: RunState) -> list[dict[str, Any]]:
        """Return the messages in a run's context, with references replaced by their values."""
        context = self._followed(run.vars.get(CONTEXT))
        found = context.get(MESSAGES) if isinstance(context, dict) else None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def changed_context(self, run: RunState, messages: list[dict[str, Any]]) -> list[Any]:
        """Return the change, as path and value, that sets the messages of a run's context."""
        context = run.vars.get(CONTEXT)
        if is_artifact_ref(context):
            return [[CONTEXT], {**self._followed(context), MESSAGES: messages}]
        return [[CONTEXT, MESSAGES], messages]

    def _followed(self, value: Any) -> Any:
        """Return JSON data with its references replaced by the values of their artifacts."""
        if is_artifact_ref(value):
            return self._followed(plain_value(value, self._store))
        if isinstance(value, dict):
            return {name: self._followed(one) for name, one in value.items()}
        return [self._followed(one) for one in value] if isinstance(value, list) else value

    @property
    def _store(self) -> ArtifactStore:
        if self._given is None:
            remedy = "Pass artifact_store=… to the WorkflowRuntime, or to the Flows"
            raise GraphError(self._name, f"there is no artifact store for the memory. {remedy}")
        return self._given
