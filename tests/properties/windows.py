"""Random histories and compositions of strategies, for the properties of windows."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from hypothesis import strategies as st

from actors import (
    ChatMessage,
    CompactionPipeline,
    CompactionStrategy,
    ContentBlock,
    SelectiveToolCallCompactionStrategy,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    ToolCall,
    ToolResult,
    ToolResultCompactionStrategy,
    TruncationStrategy,
)
from actors.context import repaired
from tests.unit.context.talk import CHARS, IMAGE, Summariser, calls, dumped, result, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Answering = Literal["short", "long", "failing"]

SIZES: Final = st.sampled_from([0, 1, 5, 40, 120, 700])
"""Lengths of texts: below, around and above the limits that are drawn below."""


@dataclass
class Talk:
    """A history that is being drawn: its turns get ids, and some are pinned."""

    turns: list[ChatMessage] = field(default_factory=list)

    def add(self, role: str, content: list[ContentBlock], *, is_pinned: bool = False) -> None:
        """Put a turn at the end."""
        metadata = {"turn": f"t{len(self.turns)}"} | ({"pinned": "1"} if is_pinned else {})
        data = {"role": role, "content": content, "metadata": metadata}
        self.turns.append(ChatMessage.model_validate(data))


@st.composite
def histories(draw: st.DrawFn, *, most: int = 9, is_tidy: bool = False) -> list[ChatMessage]:
    """Turns of people, models and tools.

    Args:
        draw: Hypothesis's.
        most: Maximum number of parts, each of one to seven turns.
        is_tidy: Each call has one result right behind it, as in a repaired view.
    """
    talk = Talk()
    kinds = ["user", "assistant", "calls", "calls"] + ["dangling", "orphan", "late"] * (not is_tidy)
    for number in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(kinds))
        pins = draw(st.integers(0, 9)) == 0
        text = f"{number} " + "x" * draw(SIZES)
        if kind in ("user", "assistant"):
            talk.add(kind, [ContentBlock(type="text", text=text)], is_pinned=pins)
            continue
        ids = [f"{number}.{n}" for n in range(draw(st.integers(1, 3)))]
        if kind != "orphan":
            blocks = [ToolCall(id=id_, name="look", arguments={"q": id_}).block() for id_ in ids]
            talk.add("assistant", blocks, is_pinned=pins)
        if kind == "dangling":
            ids = ids[1:]
        if kind == "late":
            talk.add("user", [ContentBlock(type="text", text=text)])
        for id_ in ids:
            failed = draw(st.booleans())
            answer = ToolResult(id=id_, name="look", text="y" * draw(SIZES), is_error=failed)
            media = [IMAGE] if draw(st.integers(0, 5)) == 0 else []
            is_pinned = draw(st.integers(0, 14)) == 0
            talk.add("tool", [answer.block(), *media], is_pinned=is_pinned)
    return talk.turns


def answering(how: Answering) -> Summariser:
    """A model whose answer depends on the request only, in every process."""

    def answer(request: str) -> str | Exception:
        if how == "failing":
            return ConnectionError("away")
        digest = hashlib.sha256(request.encode()).hexdigest()
        return digest[:6] if how == "short" else digest * 30

    return Summariser(answer)


@dataclass(frozen=True)
class Plan:
    """A strategy as a value: its class, its numbers, and those inside of it."""

    kind: str
    numbers: tuple[int, ...] = ()
    parts: tuple[Plan, ...] = ()
    answers: Answering = "short"

    def build(self) -> CompactionStrategy:
        """Return a strategy that has seen nothing yet."""
        return _BUILD[self.kind](self)

    def walk(self) -> Iterable[Plan]:
        """Yield all parts and it, in the order in which they are done."""
        for part in self.parts:
            yield from part.walk()
        yield self

    @property
    def has_ceilings_last(self) -> bool:
        """Whether nothing behind a ceiling writes text of its own: a mark or a summary."""
        kinds = [part.kind for part in self.walk()]
        ceilings = [at for at, kind in enumerate(kinds) if kind in ("truncation", "budget")]
        behind = kinds[min(ceilings, default=len(kinds)) :]
        return not {"results", "summarization"} & {*behind}


def _summarization(plan: Plan) -> CompactionStrategy:
    recent, old = plan.numbers
    return SummarizationCompaction(answering(plan.answers), recent, old, counter=CHARS)


def _budget(plan: Plan) -> CompactionStrategy:
    parts = [part.build() for part in plan.parts]
    budget, target = plan.numbers
    return TokenBudgetComposedStrategy(parts, budget, target_tokens=target, counter=CHARS)


_BUILD: Final[dict[str, Callable[[Plan], CompactionStrategy]]] = {
    "sliding": lambda plan: SlidingWindowCompaction(plan.numbers[0], slack=plan.numbers[1]),
    "results": lambda plan: ToolResultCompactionStrategy(plan.numbers[0]),
    "groups": lambda plan: SelectiveToolCallCompactionStrategy(plan.numbers[0]),
    "truncation": lambda plan: TruncationStrategy(plan.numbers[0] or None, plan.numbers[1] or None),
    "summarization": _summarization,
    "budget": _budget,
    "pipeline": lambda plan: CompactionPipeline(
        [part.build() for part in plan.parts], counter=CHARS
    ),
}


@st.composite
def _sliding(draw: st.DrawFn) -> Plan:
    keep = draw(st.integers(1, 12))
    return Plan("sliding", (keep, draw(st.integers(0, keep - 1))))


@st.composite
def _budgets(draw: st.DrawFn) -> Plan:
    budget = draw(st.integers(1, 900))
    target = draw(st.integers(max(1, budget // 3), budget))
    return Plan("budget", (budget, target), tuple(draw(st.lists(PLAIN, max_size=3))))


_TRUNCATION: Final = st.tuples(st.integers(0, 12), st.integers(0, 1_500)).filter(any)
PLAIN: Final[st.SearchStrategy[Plan]] = st.one_of(
    _sliding(),
    st.builds(lambda n: Plan("results", (n,)), st.integers(0, 200)),
    st.builds(lambda n: Plan("groups", (n,)), st.integers(0, 4)),
    st.builds(lambda limits: Plan("truncation", limits), _TRUNCATION),
    st.builds(
        lambda recent, old, answers: Plan("summarization", (recent, old), answers=answers),
        st.integers(0, 500),
        st.integers(0, 300),
        st.sampled_from(["short", "short", "long", "failing"]),
    ),
)
SINGLE: Final = st.one_of(PLAIN, _budgets())
"""Each of the six."""
COMPOSED: Final = st.one_of(
    SINGLE,
    st.builds(
        lambda parts: Plan("pipeline", parts=tuple(parts)), st.lists(SINGLE, min_size=2, max_size=4)
    ),
)
"""Any of the six, or several of them in a row."""


def digests() -> str:
    """The windows of fixed plans and histories, as one text."""
    digest = hashlib.sha256()
    view = [
        *talk(*"abcdef"),
        calls("1", "2"),
        result("1", "x" * 900),
        result("2"),
        *talk(*"ghi" * 9),
    ]
    plans = [
        Plan("sliding", (9, 3)),
        Plan("results", (50,)),
        Plan("groups", (0,)),
        Plan("truncation", (7, 90)),
        Plan("summarization", (60, 10)),
        Plan("budget", (120, 90), (Plan("results", (30,)), Plan("summarization", (40, 10)))),
    ]
    for plan in [*plans, Plan("pipeline", parts=tuple(plans))]:
        for window in (asyncio.run(plan.build().compact(view)), repaired(view[:7])):
            digest.update("\n".join(dumped(window)).encode())
    return digest.hexdigest()
