"""Pieces of an answer in any order that a bus has them in: each text is shown once, and whole."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from actors._kernel.runtime.hints import Delta
from actors._kernel.runtime.ids import AgentId, RunId
from actors._runtime.client.live_events import HOLD_S, CatchUp, OpenAnswers

AGENT, RUN = AgentId("chat", "s"), RunId("0" * 32)


def piece(n: int, *, attempt: int = 1, position: str = "1") -> Delta:
    """The n-th piece of an answer."""
    return Delta(
        run_id=RUN,
        agent_id=AGENT,
        attempt=attempt,
        position=position,
        n=n,
        kind="text.delta",
        text=f"{attempt}.{n} ",
    )


def thought(n: int) -> Delta:
    """The n-th piece of a call, which is reasoning."""
    return replace(piece(n), kind="reasoning.delta", text=f"r{n} ")


def shown_of(deltas: list[Delta]) -> str:
    """The text that a reader shows: a whole one takes the place of what was there."""
    text = ""
    for delta in deltas:
        if delta.n == 0 or (delta.is_whole and delta.kind == "text.delta"):
            text = ""
        if delta.kind == "text.delta":
            text += delta.text
    return text


@pytest.mark.parametrize("seed", range(200))
async def test_who_joins_anywhere_shows_the_text_once(seed: int) -> None:
    """Subscribed before any piece, asked before any later one, with a try that was broken off before."""
    rng, count = random.Random(seed), 12
    reasons = rng.randrange(4)
    answer = [thought(n) if n < reasons else piece(n) for n in range(count)]
    tries = [replace(piece(n), text=f"try {n} ") for n in range(rng.randrange(4))]
    deltas = [*tries, *answer]
    joined_at = rng.randrange(len(deltas) + 1)
    asked_at = rng.randrange(joined_at, len(deltas) + 1)
    open_answers, shown_deltas = OpenAnswers(), list[Delta]()
    async with CatchUp(shown_deltas.append) as reader:
        for at, delta in enumerate([*deltas, None]):
            if at == asked_at:
                for whole in (answers := open_answers.of(RUN)):
                    reader.take(whole)
                if answers:
                    reader.take(None)
            if delta is None:
                break
            if at == len(tries):
                open_answers.close(RUN, "1")
            open_answers.add(delta)
            if at >= joined_at:
                reader.take(delta)
    texts = [d.text for d in answer if d.kind == "text.delta"]
    assert shown_of(shown_deltas) == "".join(texts)
    positions = [d.n for d in shown_deltas if not d.is_whole and d.n >= reasons and d in answer]
    assert len(positions) == len({*positions}), "shown twice"


async def test_pieces_whose_beginning_nobody_has_are_shown_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old host does not answer; what comes then is in order, and an attempt that is over says nothing."""
    monkeypatch.setattr("actors._runtime.client.live_events.HOLD_S", 0)
    shown_deltas: list[Delta] = []
    async with CatchUp(shown_deltas.append) as reader:
        reader.take(piece(5))
        reader.take(piece(6))
        reader.take(piece(0, position="2"))
        assert shown_deltas == [piece(0, position="2")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reader.take(piece(7))
        reader.take(piece(0, attempt=2))
        reader.take(piece(8))
        reader.take(piece(1, attempt=2))
    assert HOLD_S == 1
    assert shown_deltas[1:] == [
        piece(5),
        piece(6),
        piece(7),
        piece(0, attempt=2),
        piece(1, attempt=2),
    ]


async def test_a_gap_is_filled_by_the_whole_answer() -> None:
    """After a lost connection it is asked for again; what was shown before is not shown again."""
    shown_deltas: list[Delta] = []
    whole = replace(piece(6), text="all", is_whole=True)
    async with CatchUp(shown_deltas.append) as reader:
        for n in (0, 1, 5, 6):
            reader.take(piece(n))
        assert shown_deltas == [piece(0), piece(1)]
        reader.take(replace(piece(1), is_whole=True))
        for delta in (whole, None, piece(7)):
            reader.take(delta)
    assert shown_deltas[2:] == [whole, piece(7)]
