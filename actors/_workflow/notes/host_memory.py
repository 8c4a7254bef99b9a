"""Memory that the runs of an app share on hosts: its index is in the tenant's long-term memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json

from actors._kernel.json import canonical_json
from actors._kernel.runtime.ids import derive_id
from actors._kernel.stores.memory import LongTermMemory, NewMemory
from actors._kernel.workflow.effects import EffectType, RunStatus
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.variables import RUNTIME
from actors._workflow.notes.spans import ALL, GLOBAL, SESSION, SPAN_ID, SPANS, Span

MOST_SPANS: Final = 1_000
"""Number of spans of a shared memory that an effect sees: the newest ones. The memory keeps all."""


@dataclass(slots=True, kw_only=True)
class HostMemory:
    """The shared memory that one attempt of an effect reads and writes; see `SharedMemory`.

    A span is a memory of the scope ``flows:<app>:<owner>``, whose key is its id and whose text is its JSON.

    Attributes:
        rows: The memories of the tenant.
        app: The app of the run.
        root_id: The run at the top of its tree. Runs without a session share the memory of their tree.
    """

    rows: LongTermMemory
    app: str
    root_id: str
    _open_step: OpenStep = field(init=False)
    _owners: dict[str, RunState] = field(default_factory=dict)
    _puts: list[tuple[str, Span]] = field(default_factory=list)

    async def load(self, run: RunState, open_step: OpenStep) -> None:
        """Read the indexes of the scope that an effect names, before it executes."""
        self._open_step = open_step
        requested_scope = str(open_step.effect.payload.get("scope") or "").strip().lower()
        for scope in (SESSION, GLOBAL):
            if requested_scope in {scope, ALL}:
                self._owners[scope] = await self._owner(run, scope)

    async def keep(self) -> None:
        """Write the spans that the effect put, durably and once for each effect.

        An effect that is executed again changes nothing, also if other effects changed the span since then.
        """
        for owner, span in self._puts:
            text, name = canonical_json(span), str(span[SPAN_ID])
            id_, about = derive_id(self._open_step.key, owner, name), self._about(owner)
            await self.rows.put(NewMemory(id=id_, about=about, text=text, key=name, source="tool"))

    def owner(self, run: RunState, scope: str) -> RunState:
        """Return the memory of a scope, as `load` has read it."""
        del run
        return self._owners[scope]

    def named(self, run: RunState, run_id: str) -> RunState:
        """Raise an error: a run on a host cannot read the memory of another run."""
        del run
        remedy = "Leave target_run_id out, or use scope 'session' or 'global'"
        raise GraphError(f"run {run_id!r}", f"a run on a host has its own memory. {remedy}")

    def put(self, owner: RunState, span: Span) -> None:
        """Add a span to a memory; `keep` writes it."""
        self._puts.append((owner.run_id, span))

    async def _owner(self, run: RunState, scope: str) -> RunState:
        name = GLOBAL if scope == GLOBAL else f"run:{self.root_id}"
        if scope == SESSION and run.session_id:
            name = f"session:{run.session_id}"
        spans: list[Span] = []
        # A note adds one span and reads none: it would load a thousand for nothing.
        if self._open_step.effect.type is not EffectType.MEMORY_NOTE:
            rows = await self.rows.page(about=self._about(name), limit=MOST_SPANS)
            # The page begins with the newest span, an index with the oldest one.
            spans = sorted(
                filter(None, (_span_in(row.text) for row in rows)),
                key=lambda span: (str(span.get("created_at")), str(span[SPAN_ID])),
            )
        vars_ = {RUNTIME: {SPANS: spans}}
        return RunState(name, "memory", RunStatus.COMPLETED, "memory", vars=vars_)

    def _about(self, owner: str) -> str:
        return f"flows:{self.app}:{owner}"


def _span_in(text: str) -> Span | None:
    """Return the span that a memory holds, or None if another program stored the memory in this scope."""
    try:
        span: Any = from_json(text)
    except ValueError:
        return None
    return span if isinstance(span, dict) and isinstance(span.get(SPAN_ID), str) else None
