"""Snapshots: named checkpoints of a run, to look at and to begin new runs with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from actors.kernel.workflow.drawn import new_id, utc_now_iso
from actors.kernel.workflow.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A checkpoint with a name.

    Attributes:
        snapshot_id: Its id.
        run_id: The run.
        step_id: The last step before the snapshot, if it is known.
        name: A name for people.
        description: A text for people.
        tags: Words to search by.
        created_at: The instant, in ISO 8601 in UTC.
        run_state: The run, by `RunState.to_dict`.
        spec_hash: `WorkflowSpec.hash` of the graph; None: not known.
    """

    snapshot_id: str
    run_id: str
    step_id: str | None = None
    name: str = ""
    description: str = ""
    tags: list[str] = field(default_factory=list)
    created_at: str = ""
    run_state: dict[str, Any] = field(default_factory=dict)
    spec_hash: str | None = None

    @classmethod
    def from_run(
        cls,
        *,
        run: RunState,
        name: str,
        description: str = "",
        tags: Iterable[str] = (),
        step_id: str | None = None,
        spec_hash: str | None = None,
    ) -> Snapshot:
        """Return a snapshot of the run as it is now.

        Raises:
            NotSerializableError: See `RunState.to_dict`.
        """
        return cls(
            snapshot_id=new_id(),
            run_id=run.run_id,
            step_id=step_id,
            name=name,
            description=description,
            tags=[*tags],
            created_at=utc_now_iso(),
            run_state=run.to_dict(),
            spec_hash=spec_hash,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as stores keep it."""
        return asdict(self)


@runtime_checkable
class SnapshotStore(Protocol):
    """Snapshots by id."""

    def save(self, snapshot: Snapshot) -> None:
        """Keep the snapshot. It replaces one of its id."""

    def load(self, snapshot_id: str) -> Snapshot | None:
        """Return it; None: there is none."""

    def delete(self, snapshot_id: str) -> bool:
        """Remove it; whether there was one."""

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """Return those that fit all that is given, the newest first. `query` is part of name or description."""


def chosen_snapshots(
    snapshots: Iterable[Snapshot],
    *,
    run_id: str | None,
    tag: str | None,
    query: str | None,
    limit: int,
) -> list[Snapshot]:
    """Return what `SnapshotStore.list` does, of these."""
    word = (query or "").casefold()
    found = [
        one
        for one in snapshots
        if (run_id is None or one.run_id == run_id)
        and (tag is None or tag in one.tags)
        and word in f"{one.name}\n{one.description}".casefold()
    ]
    found.sort(key=lambda one: (one.created_at, one.snapshot_id), reverse=True)
    return found[: max(limit, 0)]
