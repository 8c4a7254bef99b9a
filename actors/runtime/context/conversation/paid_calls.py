"""Model calls that strategies make while a window is made, recorded beside the call that they serve."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMClient, LLMResponse
from actors.kernel.json import JsonValue
from actors.kernel.runtime.effects import Effect, EffectCall, EffectMode
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.runtime.context.call import RunState
from actors.runtime.context.effects import effect, spent_on
from actors.runtime.context.model_calls import is_counted
from actors.runtime.replay.history import PAID


class RecordedCalls:
    """`PaidCalls` of the effect that executes at a position.

    Each has a number there. One that is recorded with the same words is not made again, whatever became
    of the effect; one whose words have changed is made anew.

    Args:
        run: What the run's verbs share.
        position: Position of the call that they serve.
        session: Session of that call.
    """

    def __init__(self, run: RunState, position: str, session: str) -> None:
        self._run, self._position, self._session = run, position, session
        self._branch = run.scheduler.enter("generate")
        self._numbers = count()

    async def ask(
        self,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """See `PaidCalls.ask`. An answer is durable when it is returned; an error is not recorded."""
        run, call = self._run, self._call(llm, messages, options)
        place = run.history.places.get(call.position)
        if place is not None and place.end is not None:
            known = place.end.payload
            if (known.get("hash"), known.get("status")) == (call.digest, "ok"):
                return LLMResponse.model_validate(known["value"])
        spans, call.asked_at = run.spans, run.clock.monotonic()
        try:
            value: JsonValue = await (call.execute() if spans is None else spans.effect(call))
        except Exception:
            failed = call.entry(status="error")
            run.counters.effect(call, failed, now_s=run.clock.monotonic())
            raise
        response = LLMResponse.model_validate(value)
        run.log.record(K.EFFECT_INTENT, call.position, call.entry(mode=call.mode.value))
        payload = call.entry(
            status="ok", value=value, model=llm.model, usage=response.usage.model_dump(mode="json")
        )
        seq = run.log.record(K.LLM_CALL, call.position, payload)
        if is_counted(run.row.supervision):
            run.log.writes.spend(spent_on(value))
        run.counters.effect(call, payload, now_s=run.clock.monotonic())
        await run.log.durable(self._branch, seq)
        run.scheduler.raise_if_interrupted(self._branch)
        return response

    def _call(
        self, llm: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions | None
    ) -> EffectCall:
        dumped: list[JsonValue] = [message.model_dump(mode="json") for message in messages]
        chosen = options.model_dump(mode="json", exclude_defaults=True) if options else None

        async def execute() -> JsonValue:
            response = await llm.generate(messages, options=options)
            return response.model_dump(mode="json")

        call = effect("llm", llm.model, ["paid", llm.model, dumped, chosen], execute)
        call.mode, call.session = EffectMode.IDEMPOTENT, self._session
        call.position = f"{self._position}{PAID}{next(self._numbers)}"
        call.id = Effect.id_of_text(self._run.run_id, call.position, call.verb, call.words)
        return call
