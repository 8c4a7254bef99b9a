"""Tries within one call: after which errors, with which pauses, and when the run sleeps instead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

import pytest
from typing_extensions import override

from actors import ChatMessage, RetryAfter
from actors._kernel.agent.models import Completion, LLMClient, Restart, StreamEvent, TextDelta
from actors.errors import TRANSIENT_MODEL_ERRORS, ContractError, ModelError, ModelErrorKind
from actors.testing import ModelReply, ScriptedModel
from compose.models import FallbackModel, RetryingModel, TryLimits
from tests.harness.simloop import SimEntropy, SimLoop, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from actors._kernel.agent.models import GenerationOptions
    from actors._testing.model_reply import Line

HI = [ChatMessage.of("user", "hi")]


def slow(wait: float | None = None) -> ModelError:
    """The provider's wish to be asked later."""
    return ModelError("rate_limited", wait, "big-1")


def retrying(*script: Line, **limits: float) -> tuple[ScriptedModel, RetryingModel]:
    """A scripted model, and the client that retries it."""
    model = ScriptedModel(*script)
    tries = TryLimits(**limits)  # type: ignore[arg-type]
    return model, RetryingModel(model, tries=tries, entropy=SimEntropy(1))


def ask(client: LLMClient) -> tuple[object, float]:
    """The text of the answer or the error, and how many seconds it took, in virtual time."""

    async def main(loop: SimLoop) -> tuple[object, float]:
        try:
            answer: object = (await client.generate(HI)).text
        except (ModelError, RetryAfter) as exc:
            answer = exc
        return answer, loop.time()

    return simulate(main, seed=1)[0]


@pytest.mark.item(341)
@pytest.mark.parametrize("kind", get_args(ModelErrorKind))
def test_only_errors_that_pass_are_tried_again(kind: ModelErrorKind) -> None:
    """The others are raised at once, as they are."""
    model, client = retrying(ModelError(kind), "fine")

    answer, _ = ask(client)

    if kind in TRANSIENT_MODEL_ERRORS:
        assert (answer, model.calls) == ("fine", 2)
    else:
        assert isinstance(answer, ModelError)
        assert (answer.kind, model.calls) == (kind, 1)


def test_a_pause_is_as_long_as_the_provider_asks() -> None:
    """Exactly, as long as the limits allow it."""
    model, client = retrying(slow(7), slow(20), "fine")

    assert ask(client) == ("fine", 27.0)
    assert model.calls == 3


def test_pauses_grow_if_the_provider_names_none() -> None:
    """Each is twice the one before, less up to a half."""
    model, client = retrying(slow(), slow(), slow(), "fine")

    answer, took_s = ask(client)

    assert (answer, model.calls) == ("fine", 4)
    assert 1.75 <= took_s <= 3.5


def test_the_fourth_failure_is_raised() -> None:
    """As it is, so that the run's retry policy decides."""
    model, client = retrying(*(slow() for _ in range(4)), "fine")

    answer, _ = ask(client)

    assert isinstance(answer, ModelError)
    assert model.calls == 4


@pytest.mark.parametrize("waits", [(61,), (30, 31), (1, 1, 1, 1)])
def test_a_longer_wait_lets_the_run_sleep(waits: tuple[float, ...]) -> None:
    """`RetryAfter` has the provider's wait; its cause is the error."""
    model, client = retrying(*(slow(wait) for wait in waits), "fine")

    answer, _ = ask(client)

    assert isinstance(answer, RetryAfter)
    assert answer.delay_s == waits[-1]
    assert "rate_limited: big-1" in answer.reason
    assert isinstance(answer.__cause__, ModelError)
    assert model.calls == len(waits)


def test_nothing_is_tried_again_behind_the_first_piece() -> None:
    """Whoever watches would see an answer begin twice."""
    model, client = retrying(ModelReply(text="half of", error=slow(1)), "whole")
    events: list[StreamEvent] = []

    async def main(loop: SimLoop) -> None:
        del loop
        async for event in client.generate_stream(HI):
            events.append(event)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(ModelError):
        simulate(main, seed=1)

    assert events == [TextDelta(text="half"), TextDelta(text=" of")]
    assert model.calls == 1


def test_a_call_has_at_least_one_try() -> None:
    """None is a mistake of the caller."""
    with pytest.raises(ContractError, match="at least one"):
        TryLimits(count=0)


def test_a_client_of_a_client_is_a_client() -> None:
    """With the inner one's name and counts."""
    _, client = retrying("fine")

    async def main(loop: SimLoop) -> int:
        del loop
        return await client.count_tokens(HI)

    assert isinstance(client, LLMClient)
    assert (client.model, client.context_window) == ("scripted", None)
    assert simulate(main, seed=1)[0] == 5


@pytest.mark.item(341)
def test_the_next_client_answers_at_once() -> None:
    """Its answer names the model; tries of a client's own are left out."""
    first, second = ScriptedModel(slow(), model="a"), ScriptedModel("b speaks", model="b")
    client = FallbackModel([RetryingModel(first), second])

    assert ask(client) == ("b speaks", 0.0)
    assert isinstance(client, LLMClient)
    assert (client.model, first.calls, second.calls) == ("a", 1, 1)


def test_if_all_fail_the_first_is_asked_again() -> None:
    """After the shortest wait that they name; no longer than the limits allow."""
    first = ScriptedModel(slow(30), "a again", model="a")
    second = ScriptedModel(slow(5), model="b")

    assert ask(FallbackModel([first, second])) == ("a again", 5.0)


def test_if_all_fail_for_long_the_run_sleeps() -> None:
    """The reason has what each of them said."""
    first, second = ScriptedModel(slow(300)), ScriptedModel(RetryAfter(200, "busy"))

    answer, _ = ask(FallbackModel([first, second]))

    assert isinstance(answer, RetryAfter)
    assert answer.delay_s == 200
    assert "no client answered" in answer.reason
    assert "busy" in answer.reason


@pytest.mark.parametrize(
    "line",
    [ModelError("auth"), ModelError("context_too_long"), ModelReply(text="half", error=slow())],
)
def test_an_error_that_stays_is_no_reason_to_fall_back(line: Line) -> None:
    """Nor is one behind the first piece."""
    second = ScriptedModel("never")

    answer, _ = ask(FallbackModel([ScriptedModel(line), second]))

    assert isinstance(answer, ModelError)
    assert second.calls == 0


def test_a_refusal_is_answered_by_the_next_client() -> None:
    """Also behind pieces, which are then void; if all refuse, nothing is tried again."""
    refused = ModelError("refused", problem="no")
    half = ModelReply(text="I can", error=refused)
    first, second = ScriptedModel(half, otherwise=refused), ScriptedModel("yes", otherwise=refused)
    client = FallbackModel([first, second])
    events: list[StreamEvent] = []

    async def main(loop: SimLoop) -> None:
        del loop
        events.extend([event async for event in client.generate_stream(HI)])

    simulate(main, seed=1)

    *pieces, last = events
    assert pieces == [TextDelta(text="I"), TextDelta(text=" can"), Restart(), TextDelta(text="yes")]
    assert isinstance(last, Completion)
    assert last.response.text == "yes"
    error, took_s = ask(client)
    assert isinstance(error, ModelError)
    assert (error.kind, took_s) == ("refused", 0.0)


def test_a_busy_client_is_asked_again_though_another_one_refuses() -> None:
    """It may answer."""
    first = ScriptedModel(ModelError("refused"), ModelError("refused"))
    second = ScriptedModel(slow(5), "yes")

    assert ask(FallbackModel([first, second]))[0] == "yes"


class Silent(ScriptedModel):
    """A model of a provider that says nothing, or a word now and then."""

    reports_signs = True

    def __init__(self, *pauses_s: float, signs: bool = False) -> None:
        super().__init__("a b c d e f g h")
        self._pauses_s, self._signs = pauses_s, signs

    @override
    async def generate_stream(
        self,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
        on_sign: Callable[[], None] | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Pause before each event, and give a sign of life before each second of it."""
        events = super().generate_stream(messages, options=options)
        for pause_s in self._pauses_s:
            for _ in range(int(pause_s)):
                await asyncio.sleep(1)
                if self._signs and on_sign is not None:
                    on_sign()
            yield await anext(events)
        async for event in events:
            yield event


@pytest.mark.parametrize(
    ("model", "limits", "took_s"),
    [
        (Silent(1_000), TryLimits(), 60),
        (Silent(1_000), TryLimits(silent_s=20, count=2, first_pause_s=4), 42),
        (Silent(1_000), TryLimits(within_s=2), 2),
        (Silent(1, 1_000), TryLimits(silent_s=20), 21),
        (Silent(*[15] * 9), TryLimits(answer_s=100), 100),
        (Silent(1_000, signs=True), TryLimits(answer_s=90), 90),
    ],
)
def test_a_silent_provider_holds_a_call_no_longer_than_the_limits(
    model: Silent, limits: TryLimits, took_s: float
) -> None:
    """Before its answer, within it, and in all. A sign of life may be a piece that nobody is shown."""
    client = RetryingModel(model, tries=limits, entropy=SimEntropy(0))

    answer, seconds = ask(client)

    assert isinstance(answer, ModelError)
    assert answer.kind == "timeout"
    assert took_s <= seconds <= took_s + 4


def test_an_answer_that_takes_its_time_is_no_silence() -> None:
    """A long call of a tool, or a long answer, ends as it should."""
    assert ask(RetryingModel(Silent(200, signs=True)))[0] == "a b c d e f g h"
    assert ask(RetryingModel(Silent(50, 50, 50)))[0] == "a b c d e f g h"


def test_the_next_client_answers_when_the_first_is_silent() -> None:
    """After the limit of one try."""
    client = FallbackModel([Silent(1_000), ScriptedModel("here")], tries=TryLimits(silent_s=5))

    assert ask(client) == ("here", 5.0)


@pytest.mark.parametrize("name", ["within_s", "silent_s", "answer_s"])
def test_a_limit_of_time_is_above_0(name: str) -> None:
    """The error names the limit."""
    with pytest.raises(ContractError, match=name):
        TryLimits(**{name: 0})


def test_a_fallback_has_the_smallest_context_window() -> None:
    """So that what fits into one fits into all."""

    class Sized(ScriptedModel):
        """A model that says its size."""

        def __init__(self, context_window: int | None) -> None:
            super().__init__()
            self.context_window = context_window

    assert FallbackModel([Sized(8_000), Sized(None), Sized(4_000)]).context_window == 4_000
    assert FallbackModel([Sized(None)]).context_window is None
    with pytest.raises(ContractError, match="at least one client"):
        FallbackModel([])


@pytest.mark.parametrize("wrap", [RetryingModel, lambda client: FallbackModel([client])])
def test_closing_closes_the_clients(wrap: Callable[[object], object]) -> None:
    """Those that have connections."""
    closed = []

    class Open(ScriptedModel):
        """A model with connections."""

        async def aclose(self) -> None:
            """Close them."""
            closed.append(self.model)

    async def main(loop: SimLoop) -> None:
        del loop
        aclose: Callable[[], Awaitable[None]] = wrap(Open()).aclose  # type: ignore[attr-defined]
        await aclose()

    simulate(main, seed=1)
    assert closed == ["scripted"]
