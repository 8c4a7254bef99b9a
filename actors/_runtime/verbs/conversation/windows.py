"""Windows made of sessions: one way for a model call, and for a look at the window without a call.

`RequestWindow` is the window of one call of a model, its receipt, and the space that is left for it. Model
calls that strategies make meanwhile are recorded beside the call that they serve (`RecordedCalls`).
`Preparation` writes summaries ahead: after an answer, while no caller waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Final, Literal

from actors._context.calls import RefusedCalls, WindowMode, in_mode, preparing, recorded_by
from actors._context.compaction.composed import CompactionPipeline, TokenBudgetComposedStrategy
from actors._context.compaction.steps import Assembled, CompactionStep, fitted
from actors._context.errors import WindowTooSmallError
from actors._context.history import StoreHistory
from actors._context.repair import repaired
from actors._context.tokens import Tally, TokenCounter, as_json, context_size_of_client, reserving
from actors._context.turns import has_no_marks, is_derived, is_recalled, is_summary
from actors._kernel.agent.agent import Agent, HistoryRetention
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    GenerationOptions,
    LLMClient,
    LLMResponse,
    PaidCalls,
    prepare,
)
from actors._kernel.agent.tools import ToolSpec
from actors._kernel.agent.transcript import NO_CUT, Cut, NewCut
from actors._kernel.json import JsonValue, canonical_json
from actors._kernel.runtime.effects import Effect, EffectCall, EffectMode
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.stores.run_store import RunStore
from actors._runtime.journal.run_log import reading
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.registry import Registry
from actors._runtime.replay.history import PAID
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.conversation.history import NewTurns
from actors._runtime.verbs.conversation.sessions import (
    LEAST,
    Sessions,
    SessionTerms,
    ShownTurn,
    WindowSource,
    changes_after,
    digest,
    fingerprint,
    new_cut,
    shown_turn,
    window_digest,
    without_marks,
)
from actors._runtime.verbs.effects import effect, spent_on
from actors._runtime.verbs.model_calls import Toolkit, is_counted
from actors.errors import ActorsError, ContractError, ModelError


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
        assembled = await pipeline.assemble(messages, tally=tally)
    return assembled, repaired(assembled.window)


def window_parts(
    window: Sequence[ChatMessage], tally: Tally, new_ids: Collection[str]
) -> dict[str, int]:
    """Return the sizes of a window's parts in tokens, of those that are not empty.

    Args:
        window: The turns, each with its marks.
        tally: Counts sizes.
        new_ids: Ids of the new turns.
    """
    parts: dict[str, list[ChatMessage]] = {}
    for turn in window:
        if turn.metadata.get("turn") in new_ids:
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
        model: Name of the agent's model, or None if it has none.
        context_size: Tokens of that model's context, or None if they are not known.
        history: Class name of the provider that keeps the turns.
        turns: Number of turns of the session.
        read: Number of turns that the window is made of: those after the cut.
        cut: The last one, or None if there is none, or a provider outside keeps the turns.
        parts: In the order of the request; those that are not empty. Tools are sent by `ctx.chat`.
        steps: The strategies that ran, in order; empty if the turns fit the budget.
        budget: The pipeline's budget, or None if it has none.
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
        source = await WindowSource.of(memory, store.data.transcripts, agent.id, name)
    blocks = await _blocks(agent, memory, store)
    tally = Tally(memory.pipeline.counter)
    counter = memory.pipeline.counter
    beside_tokens = sum(part.tokens for part in _parts(agent, (), tally, counter, blocks=blocks))
    with reserving(beside_tokens):
        assembled, window = await assembled_window(
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
        steps=assembled.steps,
        budget=min(_budgets(memory.pipeline), key=lambda budget: budget.tokens, default=None),
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
    source = await WindowSource.of(memory, store.data.transcripts, agent.id, session)
    blocks = await _blocks(agent, memory, store)
    tally, counter = Tally(memory.pipeline.counter), memory.pipeline.counter
    beside_tokens = sum(part.tokens for part in _parts(agent, (), tally, counter, blocks=blocks))
    with reserving(beside_tokens), in_mode(WindowMode.AHEAD):
        await memory.pipeline.assemble(source.messages, tally=tally)


async def _load(model: LLMClient | None) -> None:
    """Let the model's client load what it needs to know its window."""
    # Without a key the client does not know it, and the report is made all the same.
    with suppress(ModelError, ContractError):
        await prepare(model)


async def _blocks(agent: Agent, memory: SessionTerms, store: RunStore) -> list[ChatMessage]:
    if not memory.blocks:
        return []
    from actors._runtime.verbs.memory import block_turns  # noqa: PLC0415 - few use it

    return await block_turns(store.data.memories, agent.id, memory.blocks)


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
    summary_turns = [message for message in window if is_summary(message)]
    recalled_turns = [message for message in window if is_recalled(message)]
    history_turns = [message for message in window if not is_derived(message)]
    if summary_turns:
        yield WindowPart(
            name="summary", count=len(summary_turns), tokens=tally.total(summary_turns)
        )
    if recalled_turns:
        yield WindowPart(
            name="recalled", count=len(recalled_turns), tokens=tally.total(recalled_turns)
        )
    if history_turns:
        yield WindowPart(
            name="history", count=len(history_turns), tokens=tally.total(history_turns)
        )
    specs = [tool.spec().model_dump(mode="json") for tool in Toolkit.of(agent).tools]
    if specs:
        tokens = sum(counter.text(as_json(spec)) for spec in specs)
        yield WindowPart(name="tools", count=len(specs), tokens=tokens)


def _budgets(strategy: object) -> Iterator[WindowBudget]:
    """Yield the budgets of a strategy and of those that it is made of."""
    if isinstance(strategy, TokenBudgetComposedStrategy):
        yield WindowBudget(tokens=strategy.token_budget, target=strategy.target_tokens)
    inner: Iterable[Any] = getattr(strategy, "strategies", ())
    for strategy_part in inner:
        yield from _budgets(strategy_part)


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
        """Return the model's answer, which is durable then. An error is not recorded."""
        run, call = self._run, self._call(llm, messages, options)
        entries = run.history.calls.get(call.position)
        if entries is not None and entries.end is not None:
            recorded_payload = entries.end.payload
            if (recorded_payload.get("hash"), recorded_payload.get("status")) == (
                call.digest,
                "ok",
            ):
                return LLMResponse.model_validate(recorded_payload["value"])
        spans, call.asked_at = run.spans, run.clock.monotonic()
        try:
            value: JsonValue = await (call.execute() if spans is None else spans.effect(call))
        # A failed call has no entry in the log: its count is all that is left of it.
        except Exception:
            error_payload = call.entry(status="error")
            run.counters.count_effect(call, error_payload, now_s=run.clock.monotonic())
            raise
        response = LLMResponse.model_validate(value)
        run.log.record(K.EFFECT_INTENT, call.position, call.entry(mode=call.mode.value))
        payload = call.entry(
            status="ok", value=value, model=llm.model, usage=response.usage.model_dump(mode="json")
        )
        seq = run.log.record(K.LLM_CALL, call.position, payload)
        # Strategies count, and are not limited: a summary that is cut off would stay in the session.
        if is_counted(run.row.supervision):
            run.log.writes.spend(spent_on(value))
        run.counters.count_effect(call, payload, now_s=run.clock.monotonic())
        await run.log.durable(self._branch, seq)
        run.scheduler.raise_if_interrupted(self._branch)
        return response

    def _call(
        self, llm: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions | None
    ) -> EffectCall:
        message_data: list[JsonValue] = [message.model_dump(mode="json") for message in messages]
        option_data = options.model_dump(mode="json", exclude_defaults=True) if options else None

        async def execute() -> JsonValue:
            response = await llm.generate(messages, options=options)
            return response.model_dump(mode="json")

        call = effect("llm", llm.model, ["paid", llm.model, message_data, option_data], execute)
        call.mode, call.session = EffectMode.IDEMPOTENT, self._session
        call.position = f"{self._position}{PAID}{next(self._numbers)}"
        call.id = Effect.id_of_text(self._run.run_id, call.position, call.verb, call.arguments_json)
        return call


_log = logging.getLogger("callboard.context")

MAX_AT_ONCE: Final = 2
"""Agents of a host whose summaries are written at the same time; calls of runs are not among them."""
MAX_AGENTS: Final = 256
"""Agents of a host whose summaries are written or wait for a slot, a further one's being left out; and as many,
the newest, whose answers are remembered until they are idle."""


class Preparation:
    """Makes the next windows of sessions in which an answer is out, so that their summaries are ready.

    Nothing is written to the store. A strategy keeps a summary in this process until a call uses it. That
    call records it, with its cost, and writes the cut.

    Args:
        store: The store of blocks, and of turns if an agent brings no history.
        agents: The agents that this host serves.
    """

    def __init__(self, store: RunStore, agents: Registry) -> None:
        self._store, self._agents = store, agents
        self._scopes: dict[AgentId, TaskScope] = {}
        self._given_up: list[TaskScope] = []
        self._answered: dict[AgentId, tuple[Agent, dict[str, None]]] = {}
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    def __len__(self) -> int:
        """Return the number of agents for which something is prepared now."""
        return len(self._scopes)

    def note(self, agent: Agent, sessions: Iterable[str]) -> None:
        """Remember sessions in which an answer is out, until the agent has nothing to do."""
        session_names = dict.fromkeys(sessions)
        memory = SessionTerms.of(agent) if session_names else None
        if memory is None or memory.retention is not HistoryRetention.PERMANENT:
            return
        if preparing(memory.pipeline):
            _, earlier_sessions = self._answered.pop(agent.id, (agent, {}))
            self._answered[agent.id] = (agent, earlier_sessions | session_names)
        if len(self._answered) > MAX_AGENTS:
            del self._answered[next(iter(self._answered))]

    def begin(self, agent_id: AgentId) -> None:
        """Prepare the next windows of what is remembered for an agent, in the background."""
        agent, sessions = self._answered.pop(agent_id, (None, {}))
        if agent is None or len(self._scopes) >= MAX_AGENTS:
            return
        self.give_up(agent_id)
        scope = self._scopes[agent_id] = TaskScope()
        work = self._prepare(agent, SessionTerms.of(agent), tuple(sessions), scope)
        scope.start(work, name=f"prepare summaries of {agent_id}")

    def give_up(self, agent_id: AgentId) -> None:
        """Cancel what is prepared for an agent: it has something else to do."""
        scope = self._scopes.pop(agent_id, None)
        if scope is not None:
            scope.cancel()
            self._given_up = [s for s in (*self._given_up, scope) if len(s)]

    def cancel(self) -> None:
        """Give up everything, without waiting."""
        self._answered.clear()
        for agent_id in tuple(self._scopes):
            self.give_up(agent_id)

    async def close(self) -> None:
        """Give up everything and return when it has stopped."""
        self.cancel()
        for scope in self._given_up:
            await scope.close()

    async def _prepare(
        self, agent: Agent, memory: SessionTerms, sessions: tuple[str, ...], scope: TaskScope
    ) -> None:
        try:
            next_agent, strategies = self._agents.find(agent.id), preparing(memory.pipeline)
            if next_agent is None or preparing(SessionTerms.of(next_agent).pipeline) != strategies:
                _log.warning(
                    "no summary is prepared: the agent's next run has other strategies; let its factory"
                    " give all agents one context",
                    extra={"agent": str(agent.id)},
                )
                return
            async with self._slots:
                for session in sessions:
                    try:
                        await prepare_window(agent, memory, self._store, session)
                    except ActorsError as exc:
                        facts = {"agent": str(agent.id), "session": session}
                        _log.warning("a summary could not be prepared", extra=facts, exc_info=exc)
        finally:
            if self._scopes.get(agent.id) is scope:
                del self._scopes[agent.id]


_NO_OPTIONS: Final = GenerationOptions()
TOO_LONG_CUT: Final = "refused by the provider"
"""The name, in receipts, of the cut of a window that the provider refused as too long."""


@dataclass(slots=True)
class RequestWindow:
    """The window of a call, and its receipt.

    Attributes:
        new: The turns that the call adds, each with its marks.
        cut: The last cut that a window of the call made; it is written with the next entry.
        settled: The same with changes of new turns, which a session has as they are only if the call succeeds.
            None if the last window made no cut.
    """

    run: RunState
    sessions: Sessions
    call: EffectCall
    session: str
    new: list[ChatMessage]
    view: WindowSource | None = None
    assembled: Assembled | None = None
    parts: dict[str, int] = field(default_factory=dict)
    blocks: list[ChatMessage] = field(default_factory=list)
    shown_turns: list[ShownTurn] = field(default_factory=list)
    cut: NewCut | None = None
    settled: NewCut | None = None

    @property
    def tokens(self) -> int:
        """Size of the turns of the last window, without blocks."""
        return 0 if self.assembled is None else self.assembled.tokens

    async def read_blocks(self) -> int:
        """Read the agent's blocks, if it declares some, and return their tokens."""
        labels = self.sessions.memory.blocks
        if not labels:
            return 0
        from actors._runtime.verbs.memory import block_turns  # noqa: PLC0415 - few use it

        memories, agent = self.run.store.data.memories, self.run.agent_id
        self.blocks = await reading(self.run.log, partial(block_turns, memories, agent, labels))
        return sum(map(self.sessions.memory.pipeline.counter.count, self.blocks))

    async def window(self, *, at_most: int | None = None) -> list[ChatMessage]:
        """Return the turns that the model is sent. New turns stay whatever a strategy does.

        Args:
            at_most: Tokens that the window has at most, even if the strategies make none that is so small.
        """
        self.view = await self.sessions.view(self.session)
        new_ids = {turn.metadata["turn"] for turn in self.new}
        earlier_turns = [
            turn for turn in self.view.messages if turn.metadata.get("turn") not in new_ids
        ]
        calls = RecordedCalls(self.run, self.call.position, self.session)
        pipeline = self.sessions.memory.pipeline
        tally = Tally(pipeline.counter)
        self.assembled, window = await assembled_window(
            pipeline, [*earlier_turns, *self.new], calls, tally=tally
        )
        if at_most is not None and self.assembled.tokens > at_most:
            self.assembled = fitted(self.assembled, at_most, tally, name=TOO_LONG_CUT)
            window = repaired(self.assembled.window)
        self.parts = window_parts(window, tally, new_ids)
        if self.blocks:
            self.parts = {"blocks": tally.total(self.blocks), **self.parts}
        await self._cut()
        self.shown_turns = [*map(shown_turn, self.blocks), *self.sessions.shown_turns.of(window)]
        return [turn.message for turn in self.shown_turns]

    async def smaller(self, tokens_beside: int, at_most: int) -> list[ChatMessage] | None:
        """Return a window of at most so many tokens; None if none is smaller than the last one."""
        assert self.assembled is not None
        tokens_before = self.assembled.tokens
        with reserving(tokens_beside, at_most=at_most):
            window = await self.window(at_most=at_most)
        return window if self.assembled.tokens < tokens_before else None

    def settle(self) -> None:
        """Let the next windows show the new turns as this one did, since the session has them now."""
        cuts = self.run.log.writes.cuts
        if self.settled is not None and self.cut in cuts:
            cuts[cuts.index(self.cut)] = self.settled

    async def _cut(self) -> None:
        """Let the session's next window begin where this one does, and show its turns as this one does."""
        assert self.view is not None
        assert self.assembled is not None
        self.settled = None
        steps, is_cut = self.assembled.steps, self.assembled.is_cut
        is_whole = not any(step.dropped or step.changed or step.added for step in steps)
        # A cut after a refusal is of one request: no strategy chose it, and a summary may still be written.
        is_for_once = any(step.name == TOO_LONG_CUT for step in steps)
        if is_whole or is_for_once or not self.sessions.is_in_store:
            return
        is_near = any(step.added for step in steps) or sum(step.dropped for step in steps) >= LEAST
        if self.view.added and (is_cut or is_near):
            # A cut names ordinals, which turns have once they are stored.
            self.view = await self.sessions.view(self.session, anew=True)
        upto, summary = new_cut(self.view, self.assembled.window, 1 if is_cut else LEAST)
        self._add_cut(self.view, upto, summary)

    def _add_cut(self, view: WindowSource, upto: int, summary: ChatMessage | None) -> None:
        assert self.assembled is not None
        previous_cut, is_cut = view.cut, self.assembled.is_cut
        is_new = summary is not None and (previous_cut is None or summary != previous_cut.summary)
        if upto == NO_CUT and (is_new or not is_cut):
            return
        upto = view.begin if upto == NO_CUT else upto
        window = self.assembled.window if is_cut else view.messages
        changes_with_new = changes_after(upto, view, window, self.new if is_cut else ())
        if upto == view.begin and changes_with_new == view.changes:
            return
        steps = self.assembled.steps
        summarised_by = next((step.name for step in steps if step.added), None) if is_new else None
        made_by = summarised_by or fingerprint(self.sessions.memory.pipeline)
        cut_before = NO_CUT if previous_cut is None else previous_cut.upto
        changes = changes_after(upto, view, window)
        cuts = self.run.log.writes.cuts
        if self.cut in cuts:
            cuts.remove(self.cut)  # of a larger window, which was refused
        self.cut = NewCut(self.session, upto, cut_before, made_by, summary, changes)
        self.settled = replace(self.cut, changes=changes_with_new)
        cuts.append(self.cut)
        self.sessions.forget(self.session)

    def receipt(self, tools: Sequence[ToolSpec]) -> dict[str, JsonValue]:
        """Return how the window was made: sizes, what strategies dropped, and digests.

        Args:
            tools: The tools that the model is sent.
        """
        assert self.view is not None
        assert self.assembled is not None
        steps: list[JsonValue] = [
            {
                "strategy": step.name,
                "dropped": step.dropped,
                "changed": step.changed,
                "added": step.added,
                "tokens": step.tokens_after,
            }
            for step in self.assembled.steps
            if step.dropped or step.changed or step.added
        ]
        return {
            "session": self.session,
            "head": self.view.head,
            "cut": self.view.begin,
            "turns": len(self.shown_turns),
            "tokens": self.assembled.tokens + self.parts.get("blocks", 0),
            "parts": {**self.parts},
            "steps": steps,
            "window": window_digest(self.shown_turns),
            "tools": digest(tools) if tools else None,
        }


def reserved_tokens(
    model: LLMClient, options: GenerationOptions | None, new: NewTurns, counter: TokenCounter
) -> int:
    """Return how many tokens are to be left free beside the turns.

    Args:
        model: Its context size counts, if it is known.
        options: Options of the call.
        new: The new turns. Results of tools are not counted, because they can be shortened.
        counter: Counts the remaining tokens.

    Raises:
        WindowTooSmallError: The model's window is known, and too small for what cannot be left out.
    """
    options = options or _NO_OPTIONS
    schemas = [tool.model_dump(mode="json") for tool in options.tools]
    parts = {
        "instructions": counter.text(options.system_instructions or ""),
        "tools": counter.text(canonical_json(schemas)) if schemas else 0,
        "max_tokens": options.max_tokens or 0,
    }
    reserved_sum = sum(parts.values())
    parts["new turns"] = new.fixed_tokens
    size = context_size_of_client(model)
    if size is not None and sum(parts.values()) > size:
        table = ", ".join(f"{name} {tokens}" for name, tokens in parts.items() if tokens)
        raise WindowTooSmallError(model.model, size, table)
    return reserved_sum
