"""Windows made of sessions: one way for a model call, and for a look at the window without a call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from actors.context.calls import RefusedCalls, WindowMode, in_mode, recorded_by
from actors.context.compaction.composed import CompactionPipeline, TokenBudgetComposedStrategy
from actors.context.compaction.steps import Assembled, CompactionStep
from actors.context.history import StoreHistory
from actors.context.repair import repaired
from actors.context.tokens import Tally, TokenCounter, as_json, context_size_of_client, reserving
from actors.context.turns import has_no_marks, is_derived, is_recalled, is_summary
from actors.errors import ContractError, ModelError
from actors.kernel.agent.agent import Agent, HistoryRetention
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import LLMClient, PaidCalls, prepare
from actors.kernel.agent.transcript import Cut
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.run_store import RunStore
from actors.runtime.context.conversation.sessions import SessionTerms, WindowSource
from actors.runtime.context.conversation.shown import without_marks
from actors.runtime.context.model_calls import Toolkit


async def assembled_window(
    pipeline: CompactionPipeline,
    messages: list[ChatMessage],
    paid_calls: PaidCalls,
    *,
    tally: Tally | None = None,
) -> tuple[Assembled, list[ChatMessage]]:
    """Return what the strategies make of a session's turns, and that as a provider accepts it.

    Args:
        pipeline: The agent's.
        messages: The turns, in front of them perhaps a summary.
        paid_calls: Takes what strategies ask of models.
        tally: Counts sizes; by default by the pipeline's counter.
    """
    with recorded_by(paid_calls):
        made = await pipeline.assemble(messages, tally=tally)
    return made, repaired(made.window)


def window_parts(
    window: Sequence[ChatMessage], tally: Tally, fresh: Collection[str]
) -> dict[str, int]:
    """Return the sizes of a window's parts in tokens, of those that are not empty.

    Args:
        window: The turns, each with its marks.
        tally: Counts sizes.
        fresh: Ids of the new turns.
    """
    parts: dict[str, list[ChatMessage]] = {}
    for turn in window:
        if turn.metadata.get("turn") in fresh:
            part = "new"
        elif has_no_marks(turn):
            part = "history"
        else:
            part = "summary" if is_summary(turn) else "recalled" if is_recalled(turn) else "history"
        parts.setdefault(part, []).append(turn)
    return {part: tally.total(turns) for part, turns in parts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPart:
    """A part of a request.

    Attributes:
        name: ``instructions``, ``blocks``, ``summary``, ``recalled``, ``history`` or ``tools``.
        count: Number of its texts, turns or tools.
        tokens: Its size.
    """

    name: Literal["instructions", "blocks", "summary", "recalled", "history", "tools"]
    count: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBudget:
    """The smallest token budget of a pipeline. See `TokenBudgetComposedStrategy`.

    Attributes:
        tokens: Maximum size of turns and summaries together.
        target: Size that a window above it goes down to.
    """

    tokens: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """The window that a call of an agent's model would be sent, before a new turn.

    Attributes:
        agent: The agent of the session.
        session: The conversation, within the agent.
        model: Name of the agent's model; None: it has none.
        context_size: Tokens of that model's context; None: not known.
        history: Class name of the provider that keeps the turns.
        turns: Number of turns of the session.
        read: Number of turns that the window is made of: those after the cut.
        cut: The last one; None: there is none, or a provider outside keeps the turns.
        parts: In the order of the request; those that are not empty. Tools are sent by `ctx.chat`.
        steps: The strategies that ran, in order; empty if the turns fit the budget.
        budget: The pipeline's budget; None: it has none.
        messages: The window itself, without instructions and tools.
    """

    agent: AgentId
    session: str
    model: str | None
    context_size: int | None
    history: str
    turns: int
    read: int
    cut: Cut | None
    parts: tuple[WindowPart, ...]
    steps: tuple[CompactionStep, ...]
    budget: WindowBudget | None
    messages: tuple[ChatMessage, ...]

    @property
    def tokens(self) -> int:
        """Size of all parts together."""
        return sum(part.tokens for part in self.parts)


async def window_report(agent: Agent, store: RunStore, session: str | None = None) -> WindowReport:
    """Return the window that a call of the agent's model would be sent now. See `Runtime.window`.

    Args:
        agent: Its code.
        store: The store of its blocks, and of its turns if it brings no history.
        session: By default the agent's attribute `session`.

    Raises:
        ContractError: No session is given, and the agent has none of its own.
    """
    memory = SessionTerms.of(agent)
    name = session or memory.session
    if name is None:
        remedy = f"name one; `callboard history list {agent.id}` lists those that there are"
        raise ContractError(f"{agent.id} has no session of its own: {remedy}")
    model: LLMClient | None = getattr(agent, "model", None)
    await _load(model)
    source = WindowSource([], {})
    if memory.retention is not HistoryRetention.NONE:
        source = await WindowSource.of(memory, store.transcripts, agent.id, name)
    blocks = await _blocks(agent, memory, store)
    tally = Tally(memory.pipeline.counter)
    counter = memory.pipeline.counter
    beside = sum(part.tokens for part in _parts(agent, (), tally, counter, blocks=blocks))
    with reserving(beside):
        made, window = await assembled_window(
            memory.pipeline, source.messages, RefusedCalls(), tally=tally
        )
    return WindowReport(
        agent=agent.id,
        session=name,
        model=None if model is None else model.model,
        context_size=None if model is None else context_size_of_client(model),
        history=type(memory.history or StoreHistory()).__name__,
        turns=source.count,
        read=sum(not is_derived(message) for message in source.messages),
        cut=source.cut,
        parts=tuple(_parts(agent, window, tally, counter, blocks=blocks)),
        steps=made.steps,
        budget=min(_budgets(memory.pipeline), key=lambda one: one.tokens, default=None),
        messages=(*blocks, *map(without_marks, window)),
    )


async def prepare_window(agent: Agent, memory: SessionTerms, store: RunStore, session: str) -> None:
    """Make the window of `window_report` ahead: strategies keep what they ask models for it.

    Args:
        agent: Its code.
        memory: What it declares.
        store: The store of its blocks, and of its turns if it brings no history.
        session: The conversation, within the agent.
    """
    await _load(getattr(agent, "model", None))
    source = await WindowSource.of(memory, store.transcripts, agent.id, session)
    blocks = await _blocks(agent, memory, store)
    tally, counter = Tally(memory.pipeline.counter), memory.pipeline.counter
    beside = sum(part.tokens for part in _parts(agent, (), tally, counter, blocks=blocks))
    with reserving(beside), in_mode(WindowMode.AHEAD):
        await memory.pipeline.assemble(source.messages, tally=tally)


async def _load(model: LLMClient | None) -> None:
    """Let the model's client load what it needs to know its window. Without a key it does not know it."""
    with suppress(ModelError, ContractError):
        await prepare(model)


async def _blocks(agent: Agent, memory: SessionTerms, store: RunStore) -> list[ChatMessage]:
    if not memory.blocks:
        return []
    from actors.runtime.context.conversation.blocks import block_turns  # noqa: PLC0415 - few use it

    return await block_turns(store.memories, agent.id, memory.blocks)


def _parts(
    agent: Agent,
    window: Sequence[ChatMessage],
    tally: Tally,
    counter: TokenCounter,
    *,
    blocks: Sequence[ChatMessage] = (),
) -> Iterator[WindowPart]:
    """Yield the parts of a request that are not empty."""
    instructions: str | None = getattr(agent, "instructions", None)
    if instructions:
        yield WindowPart(name="instructions", count=1, tokens=counter.text(instructions))
    if blocks:
        yield WindowPart(name="blocks", count=len(blocks), tokens=tally.total(blocks))
    summaries = [message for message in window if is_summary(message)]
    recalled = [message for message in window if is_recalled(message)]
    history = [message for message in window if not is_derived(message)]
    if summaries:
        yield WindowPart(name="summary", count=len(summaries), tokens=tally.total(summaries))
    if recalled:
        yield WindowPart(name="recalled", count=len(recalled), tokens=tally.total(recalled))
    if history:
        yield WindowPart(name="history", count=len(history), tokens=tally.total(history))
    specs = [tool.spec().model_dump(mode="json") for tool in Toolkit.of(agent).tools]
    if specs:
        tokens = sum(counter.text(as_json(spec)) for spec in specs)
        yield WindowPart(name="tools", count=len(specs), tokens=tokens)


def _budgets(strategy: object) -> Iterator[WindowBudget]:
    """Yield the budgets of a strategy and of those that it is made of."""
    if isinstance(strategy, TokenBudgetComposedStrategy):
        yield WindowBudget(tokens=strategy.token_budget, target=strategy.target_tokens)
    inner: Iterable[Any] = getattr(strategy, "strategies", ())
    for one in inner:
        yield from _budgets(one)
