"""Exceptions of handlers: an attempt that failed."""

from __future__ import annotations

from typing import get_args

import pytest

from actors._kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors._kernel.workflow.run_state import RunState
from actors._workflow.handlers import EffectHandlers
from actors.errors import TRANSIENT_MODEL_ERRORS, ModelError, ModelErrorKind
from actors.workflow import RunStatus


@pytest.mark.parametrize("kind", get_args(ModelErrorKind))
async def test_only_errors_of_models_that_pass_are_worth_another_attempt(
    kind: ModelErrorKind,
) -> None:
    """The same request would get the same error otherwise, with both drivers."""

    def fail(run: RunState, effect: Effect) -> EffectOutcome:
        del run, effect
        raise ModelError(kind)

    handlers = EffectHandlers({EffectType.LLM_CALL: fail})
    run, effect = RunState("r", "", RunStatus.RUNNING, ""), Effect(EffectType.LLM_CALL, {}, "out")

    for outcome in (handlers.call(run, effect, None), await handlers.call_async(run, effect, None)):
        assert outcome.retryable is (kind in TRANSIENT_MODEL_ERRORS)
