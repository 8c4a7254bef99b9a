"""The agent that interprets programs through ctx, and the outside world that its effects touch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.communication import AskKind, AskOutcome
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, RunId, TopicId
from actors._kernel.runtime.sources import RunHandle
from tests.harness.simloop import EPOCH
from tests.model.memories import LIMIT, hits_of
from tests.model.program import make_error
from tests.model.reading import plain_error
from tests.model.scripted import SESSIONS, Embedder, context_of, embedding_name, model_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from tests.model.program import Call, Case, Code

AGENT: AgentId = AgentId("program", "one")
SINK: AgentId = AgentId("sink", "model")


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of an effect, as the outside world records it.

    Attributes: host: Number of the host that executed it. run_id: Its run. log: The durable part of
    the log when it started.
    """

    name: str
    run_id: RunId
    number: int
    host: int
    at: float
    log: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class World:
    """Counts executions outside of any store and returns scripted outcomes.

    Attributes: host: The current host; an execution by another one is a fault. log: Returns the
    durable log of a run: kinds and names. replies: By run and question, the code's replies. before_call:
    Called by code before each of its calls.
    """

    case: Case
    log: Callable[[RunId], Awaitable[tuple[tuple[str, str], ...]]]
    host: int = 0
    before_call: Callable[[], Awaitable[None]] | None = None
    begun: list[Execution] = field(default_factory=list)
    ended: list[Execution] = field(default_factory=list)
    ghosts: list[Execution] = field(default_factory=list)
    replies: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """By name, how often each effect started to execute."""
        counts: dict[str, int] = {}
        for execution in self.begun:
            counts[execution.name] = counts.get(execution.name, 0) + 1
        return counts

    async def execute(self, name: str, host: int, run_id: RunId) -> Any:
        """Execute the effect once more: wait as scripted, then return or raise as scripted."""
        durable = await self.log(run_id)
        number = self.counts().get(name, 0)
        now = asyncio.get_running_loop().time()
        execution = Execution(name, run_id, number, host, now, durable)
        if host != self.host:
            self.ghosts.append(execution)
        self.begun.append(execution)
        outcome = self.case.outcome(name, number)
        if outcome["d"] > 0:
            await asyncio.sleep(outcome["d"])
        self.ended.append(execution)
        if "err" in outcome:
            raise make_error(outcome["err"], f"{name}#{number}")
        return outcome.get("ok")


OF_BRANCHES: Final = frozenset({"gather", "select", "scope", "start", "join", "cancel"})
"""Verbs that return what the code itself has made."""
_ARGUMENTS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"called": {"type": "string"}, "what": {}},
    "required": ["called", "what"],
    "additionalProperties": False,
}
"""Of both tools. To read them from the signature for each agent takes a sixth of a program's time."""


class ProgramAgent:
    """Runs its case's program if the message requests it; other messages are only recorded."""

    def __init__(self, case: Case, world: World, *, id: AgentId = AGENT) -> None:  # noqa: A002
        self.id = id
        self._case = case
        self._world = world
        self._host = world.host
        self._run_id = RunId("")
        self._tag = ""
        self._seen: list[Message] = []
        self._handles: dict[str, RunHandle] = {}
        self.tools = [
            Tool("idempotent_tool", "", self._use, _ARGUMENTS, idempotent=True),
            Tool("at_most_once_tool", "", self._use, _ARGUMENTS),
        ]
        if case.retention:
            self.session, self.model = SESSIONS[0], model_of(self._step)
            self.context = context_of(self._step, case.retention)

        if case.remembers:
            self.embedder = Embedder(self._embed)

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Interpret the program; a run of the first agent that messages start only returns its messages."""
        boot = inbox[0].payload if inbox else None
        is_first = str(self.id) == self._case.root
        if is_first and not (isinstance(boot, dict) and ("boot" in boot or "trace" in boot)):
            unread = [message.payload for message in inbox]
            return {"unread": unread, "senders": [message.sender for message in inbox]}
        self._run_id, self._seen, self._handles = ctx.run_id, list(inbox), {}
        tag = self._tag = "" if is_first else ctx.run_id[:6]
        payloads = [spoiled(message.payload) for message in inbox]
        return await self._drive(ctx, self._case.code(self.id.type, payloads, tag))

    async def _embed(self, text: str) -> Any:
        return await self._step(embedding_name(text, self._tag))

    async def _use(self, called: str, what: Any) -> Any:
        spoiled(what)
        return await self._world.execute(called, self._host, self._run_id)

    async def _step(self, name: str, *args: Any) -> Any:
        spoiled(args)
        return await self._world.execute(name, self._host, self._run_id)

    async def _drive(self, ctx: Any, code: Code) -> Any:
        """Answer the calls of one generator; errors are thrown into it outside any handler.

        The code computes with copies: whatever a verb was given, or has returned, is changed in place.
        """
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                call = code.send(value) if error is None else code.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            copied_call = replace(call, args=copy_of(call.args))
            if self._world.before_call is not None:
                await self._world.before_call()
            try:
                value = await getattr(self, f"_{call.verb}_verb")(ctx, copied_call)
                if call.verb not in OF_BRANCHES:
                    value = spoiled(value)
                    spoiled(copied_call.args)
            except BaseException as exc:  # noqa: BLE001 - thrown into the code
                error = exc

    async def _step_verb(self, ctx: Any, call: Call) -> Any:
        name, mode, args = call.args
        return await ctx.step(name, self._step, name, *args, effect=mode)

    async def _tool_verb(self, ctx: Any, call: Call) -> Any:
        mode, kwargs = call.args
        name = "idempotent_tool" if mode == "idempotent" else "at_most_once_tool"
        result = await ctx.tool(name, **kwargs)
        return [result.status, result.structured, result.text if result.status != "ok" else ""]

    async def _sleep_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.sleep(call.args[0])

    async def _sleep_until_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.sleep_until(EPOCH + timedelta(seconds=call.args[0]))

    async def _signal_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.sleep_until_signal(call.args[0])

    async def _receive_verb(self, ctx: Any, call: Call) -> Any:
        message = await ctx.receive(timeout=call.args[0])
        if message is None:
            return None
        self._seen.append(message)
        return message.payload

    async def _now_verb(self, ctx: Any, _: Call) -> Any:
        now: datetime = await ctx.now()
        return (now - EPOCH).total_seconds()

    async def _random_verb(self, ctx: Any, _: Call) -> Any:
        return await ctx.random()

    async def _uuid_verb(self, ctx: Any, _: Call) -> Any:
        return await ctx.uuid()

    async def _get_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.state.get(call.args[0])

    async def _set_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.state.set(*call.args)

    async def _clear_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.state.clear(call.args[0])

    async def _send_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.send(AgentId.parse(self._case.sink), call.args[0])

    async def _tell_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.send(AgentId.parse(call.args[0]), call.args[1])

    async def _emit_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.emit(_topic(call.args[0]), call.args[1])

    async def _follow_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.follow(_topic(call.args[0]))

    async def _unfollow_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.unfollow(_topic(call.args[0]))

    async def _spawn_verb(self, ctx: Any, call: Call) -> Any:
        handle: RunHandle = await ctx.spawn(call.args[0], call.args[1])
        self._handles[handle.run_id] = handle
        return handle.run_id

    async def _stop_run_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.cancel(self._handles[call.args[0]])

    async def _await_run_verb(self, ctx: Any, call: Call) -> Any:
        result = await ctx.join(self._handles[call.args[0]])
        return [result.status.value, result.output, plain_error(result.error)]

    async def _ask_verb(self, ctx: Any, call: Call) -> Any:
        target, payload, limit = call.args
        return _describe_outcome(await ctx.ask(AgentId.parse(target), payload, timeout=limit))

    async def _ask_run_verb(self, ctx: Any, call: Call) -> Any:
        child, payload, limit = call.args
        return _describe_outcome(await ctx.ask(self._handles[child], payload, timeout=limit))

    async def _approval_verb(self, ctx: Any, call: Call) -> Any:
        what, limit = call.args
        decided = await ctx.approval(what, timeout=limit)
        return [decided.status.value, decided.by]

    async def _reply_verb(self, ctx: Any, call: Call) -> Any:
        which, value = call.args
        if self._seen:
            message = self._seen[which % len(self._seen)]
            self._world.replies.setdefault((self._run_id, message.id), []).append(value)
            await ctx.reply(message, value)

    async def _append_verb(self, ctx: Any, call: Call) -> Any:
        texts, session = call.args
        turns = [ChatMessage.of("user", text) for text in texts]
        await ctx.history.append(*turns, session=session)
        for turn in turns:
            turn.content.clear()

    async def _count_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.history.count(session=call.args[0])

    async def _turns_verb(self, ctx: Any, call: Call) -> Any:
        messages = await ctx.history.get(session=call.args[0])
        return [[message.role, message.text, message.turn] for message in messages]

    async def _generate_verb(self, ctx: Any, call: Call) -> Any:
        name, text, session = call.args
        turn = ChatMessage.of("user", f"{name}|{text}")
        answer = await ctx.generate(turn, session=session)
        reply_text = answer.text
        turn.content.clear()
        answer.content.clear()
        return reply_text

    async def _remember_verb(self, ctx: Any, call: Call) -> Any:
        text, key, about = call.args
        return await ctx.memory.remember(text, key=key, about=about)

    async def _recall_verb(self, ctx: Any, call: Call) -> Any:
        query, about = call.args
        hits = await ctx.memory.recall(query, about=about, limit=LIMIT)
        return hits_of([hit.model_dump() for hit in hits])

    async def _forget_verb(self, ctx: Any, call: Call) -> Any:
        key_or_id, about = call.args
        return await ctx.memory.forget(key_or_id, about=about)

    async def _block_verb(self, ctx: Any, call: Call) -> Any:
        block = await ctx.memory.block(call.args[0])
        return [block.text, block.version]

    async def _set_block_verb(self, ctx: Any, call: Call) -> Any:
        name, text, expected = call.args
        block = await ctx.memory.set_block(name, text, expected=expected)
        return [block.text, block.version]

    async def _patched_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.patched(call.args[0])

    async def _check_verb(self, ctx: Any, _: Call) -> Any:
        return ctx.check()

    async def _continue_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.continue_as_new(call.args[0])

    async def _gather_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.gather(*[self._drive(ctx, code) for code in call.args[0]])

    async def _select_verb(self, ctx: Any, call: Call) -> Any:
        selected = await ctx.select(*[self._drive(ctx, code) for code in call.args[0]])
        return [selected.index, selected.value]

    async def _scope_verb(self, ctx: Any, call: Call) -> Any:
        async with ctx.scope() as scope:
            return await self._drive(ctx, call.args[0](scope))

    async def _start_verb(self, ctx: Any, call: Call) -> Any:
        scope, code = call.args
        return scope.start(self._drive(ctx, code))

    async def _join_verb(self, _: Any, call: Call) -> Any:
        return await call.args[0]

    async def _cancel_verb(self, _: Any, call: Call) -> Any:
        await call.args[0].cancel()


def copy_of(value: Any) -> Any:
    """Return JSON data with lists and objects of its own; anything else as it is."""
    if isinstance(value, dict):
        return {key: copy_of(item) for key, item in value.items()}
    return type(value)(map(copy_of, value)) if type(value) in (list, tuple) else value


def spoiled(value: Any) -> Any:
    """Return a copy of a value, which is changed in place in all its parts."""
    copy = copy_of(value)
    match value:
        case dict():
            for item in value.values():
                spoiled(item)
            value.clear()
            value["spoiled"] = True
        case list() | tuple():
            for item in value:
                spoiled(item)
            if isinstance(value, list):
                value.insert(0, "spoiled")
    return copy


def _topic(text: str) -> TopicId:
    tenant, _, name = text.rpartition(":")
    type_, source = name.split("/")
    return TopicId(type_, source, tenant or DEFAULT_TENANT)


def _describe_outcome(outcome: AskOutcome) -> Any:
    failed = outcome.kind in (AskKind.TARGET_FAILED, AskKind.TARGET_CANCELLED)
    result = plain_error(outcome.result) if failed else outcome.result
    return [outcome.kind.value, result, outcome.handle]
