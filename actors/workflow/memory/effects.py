"""The memory effects in the form in which both drivers execute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ContractError
from actors.kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors.kernel.workflow.run_state import RunState
from actors.workflow.handlers import EffectHandlers, Handler
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.memory.archive import Archive
from actors.workflow.memory.compaction import Compaction, compaction_of
from actors.workflow.memory.evidence import EvidenceRecorder
from actors.workflow.memory.notes import noted, tag
from actors.workflow.memory.owners import Memories, SharedMemory
from actors.workflow.memory.payloads import Payload
from actors.workflow.memory.queries import queried
from actors.workflow.memory.rehydration import rehydrated
from actors.workflow.memory.requests import MemoryRequest

if TYPE_CHECKING:
    from actors.workflow.memory.host_memory import HostMemory

_EFFECTS: Final[dict[EffectType, Callable[[MemoryRequest], EffectOutcome]]] = {
    EffectType.MEMORY_NOTE: noted,
    EffectType.MEMORY_QUERY: queried,
    EffectType.MEMORY_TAG: tag,
    EffectType.MEMORY_REHYDRATE: rehydrated,
}
MEMORY_EFFECTS: Final = frozenset({*_EFFECTS, EffectType.MEMORY_COMPACT})


class MemoryEffects:
    """The memory effects of a driver.

    Args:
        store: Function that returns the artifact store, or None.
        shared: The memory of other runs, for `outcome`.
        handlers: The host's handlers. Their LLM_CALL makes summaries.
        summarizer: A handler that makes summaries instead of LLM_CALL, see `summarizing`.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Any],
        shared: SharedMemory | None = None,
        handlers: EffectHandlers,
        summarizer: Handler | None = None,
    ) -> None:
        self._store, self._shared = store, shared
        self._has_summarizer = summarizer is not None
        own = {EffectType.MEMORY_COMPACT: summarizer} if summarizer is not None else {}
        self._summaries = EffectHandlers(own) if own else handlers

    def lacks(self, kind: EffectType) -> str:
        """Return the parameter that a memory effect needs and the driver does not have.

        Empty: the driver has all.
        """
        compacts = kind is EffectType.MEMORY_COMPACT and not self._has_summarizer
        if compacts and EffectType.LLM_CALL not in self._summaries:
            return "chat_summarizer"
        is_kept = kind in MEMORY_EFFECTS and kind is not EffectType.MEMORY_TAG
        return "artifact_store" if is_kept and self._store() is None else ""

    def outcome(self, run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
        """Return the outcome of one attempt."""
        assert self._shared is not None
        found = self._begun(run, opened, at, self._shared)
        if isinstance(found, EffectOutcome):
            return found
        return found.ended(self._summaries.call(run, self._asked(found), None))

    async def awaited(
        self, run: RunState, opened: OpenStep, at: str, shared: HostMemory
    ) -> EffectOutcome:
        """Return the same as `outcome`. The handler that makes summaries may be a coroutine function.

        Spans that the effect puts into the memory `shared` are durable when this returns.
        """
        try:
            await shared.load(run, opened)
            found = self._begun(run, opened, at, shared)
            await shared.keep()
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        except Exception as exc:  # noqa: BLE001 - a failure of the store, which is recorded
            return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")
        if isinstance(found, EffectOutcome):
            return found
        return found.ended(await self._summaries.awaited(run, self._asked(found), None))

    def evidenced(
        self, outcome: Any, run: RunState, opened: OpenStep, now: Callable[[], str]
    ) -> Any:
        """Return the outcome of a handler of TOOL_CALLS with the evidence of its calls.

        `now` returns the instant.
        """
        store = self._store()
        is_kept = store is not None and opened.effect.type is EffectType.TOOL_CALLS
        if not is_kept or not isinstance(outcome, EffectOutcome):
            return outcome
        return EvidenceRecorder(store).recorded(outcome, run, opened, now())

    def _asked(self, found: Compaction) -> Effect:
        return found.asked_of_summarizer() if self._has_summarizer else found.asked_of_model()

    def _begun(
        self, run: RunState, opened: OpenStep, at: str, shared: SharedMemory
    ) -> EffectOutcome | Compaction:
        try:
            return self._done(run, opened, at, shared)
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        except Exception as exc:  # noqa: BLE001 - a failure of the store, which is recorded
            return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")

    def _done(
        self, run: RunState, opened: OpenStep, at: str, shared: SharedMemory
    ) -> EffectOutcome | Compaction:
        kind = opened.effect.type
        request = MemoryRequest(
            run=run,
            opened=opened,
            at=at,
            payload=Payload(kind.value, opened.effect.payload),
            archive=Archive(self._store(), kind.value),
            memories=Memories(run, shared),
        )
        effect = _EFFECTS.get(kind)
        if effect is not None:
            return effect(request)
        nothing = {"span_id": None, "compacted": 0}
        return compaction_of(request) or request.met("There is nothing to compact.", nothing)
