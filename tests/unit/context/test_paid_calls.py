"""The one way by which strategies ask a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors import SummarizationCompaction
from actors._kernel.agent.models import PaidCalls
from actors.context import ask, recorded_by
from tests.architecture.test_house_rules import ROOT
from tests.unit.context.talk import CHARS, Summariser, dumped, say, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import ChatMessage
    from actors._kernel.agent.models import GenerationOptions, LLMClient, LLMResponse


class Ledger:
    """Records of one run: an answer to each call, in order."""

    def __init__(self, *recorded: LLMResponse) -> None:
        self.recorded = list(recorded)
        self.next = 0

    async def ask(
        self,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Return the record, or make it."""
        if self.next == len(self.recorded):
            self.recorded.append(await llm.generate(messages, options=options))
        self.next += 1
        return self.recorded[self.next - 1]


async def test_without_records_the_model_is_asked() -> None:
    """With the messages and the options as they are."""
    model = Summariser(lambda text: text.upper())

    response = await ask(model, [say("hi")])

    assert (response.text, model.requests) == ("HI", ["hi"])


@pytest.mark.item(300)
async def test_a_recorded_summary_is_not_bought_again() -> None:
    """A strategy that has forgotten everything, as after a crash, is given the recorded answer."""
    view, model, ledger = talk(*["long enough to matter"] * 9), Summariser(), Ledger()
    with recorded_by(ledger):
        first = await SummarizationCompaction(model, 30, 10, counter=CHARS).compact(view)

    after = Ledger(*ledger.recorded)
    with recorded_by(after):
        second = await SummarizationCompaction(model, 30, 10, counter=CHARS).compact(view)

    assert isinstance(ledger, PaidCalls)
    assert dumped(first) == dumped(second)
    assert len(model.requests) == len(ledger.recorded) == after.next == 1
    await ask(model, [say("behind the block")])
    assert (len(model.requests), after.next) == (2, 1)


async def test_records_are_those_of_one_run() -> None:
    """Runs at the same time do not meet; behind the block there are none."""
    model, ledgers = Summariser(), [Ledger(), Ledger()]

    async def run(ledger: Ledger) -> None:
        with recorded_by(ledger):
            await asyncio.sleep(0)
            await ask(model, [say("hi")])

    async with asyncio.TaskGroup() as group:
        for ledger in ledgers:
            group.create_task(run(ledger))
    await ask(model, [say("hi")])

    assert [len(ledger.recorded) for ledger in ledgers] == [1, 1]
    assert len(model.requests) == 3


def test_no_strategy_asks_a_model_in_another_way() -> None:
    """A call that went around the records would be billed again after a crash."""
    files = (ROOT / "actors/_context").rglob("*.py")

    assert [file.name for file in files if ".generate(" in file.read_text()] == ["calls.py"]
