"""Attributes of spans of runs, and the facts of executions in a log. Pure; docs/tracing.md has the names.

Trace contexts are OpenTelemetry's of the running code, and those of messages and runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, TraceFlags
from pydantic_core import from_json

from actors._kernel.agent.agent import RunMeta
from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Finish, Park, Retry, Suspend, Then
from actors._kernel.runtime.effects import EffectCall
from actors._kernel.runtime.log_entry import OUTLIVED, RunLogEntry
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import LoadedRun, RunRow
from actors._kernel.tracing import TRACE_PARENT, SpanPlace, caused_by, parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

Attributes: TypeAlias = "dict[str, AttributeValue]"

RUN_ID: Final = "callboard.run.id"

_OPERATIONS: Final = {"llm": "chat", "tool": "execute_tool"}
_MEMORY: Final = {"memory.recall": "search_memory", "memory.remember": "upsert_memory"}
"""Operations of `ctx.memory`, by the names of their effects."""
_INPUTS: Final = {"llm": "gen_ai.input.messages", "tool": "gen_ai.tool.call.arguments"}
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure-responses": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock-mantle": "aws.bedrock",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "xai": "x_ai",
}
"""Providers whose name in OpenTelemetry's list is not the one in names of models."""
_TOKENS: Final = {
    "input": "input_tokens",
    "cached": "cache_read.input_tokens",
    "cache_written": "cache_creation.input_tokens",
    "output": "output_tokens",
}
_ENDS: Final[dict[type, str]] = {Suspend: "suspended", Retry: "failed", Park: "parked"}
_REASONS: Final[dict[str, str]] = {K.RUN_ATTEMPT_FAILED: "retry", K.RUN_CONTINUED: "continued"}


def of_run(row: RunRow, status: str, *, session: str | None) -> Attributes:
    """Return the attributes of a run's root span. Without `session` the one of the run's row counts."""
    supervision = row.supervision
    session_of_row = supervision.session_id if supervision is not None else None
    return {
        **_agent(row, session or session_of_row),
        "gen_ai.operation.name": "invoke_agent",
        "callboard.run.status": status,
    }


def of_message(operation: str, *, system: str, kind: str, target: str, run_id: str) -> Attributes:
    """Return the attributes of the span of a message that is sent or received."""
    return {
        "messaging.system": system,
        "messaging.operation.type": operation,
        "messaging.destination.template": kind,
        "messaging.destination.name": target,
        RUN_ID: run_id,
    }


def of_wait(row: RunRow, verb: str, *, system: str) -> Attributes:
    """Return the attributes of the span of a wait at its start."""
    if verb != "receive":
        return {RUN_ID: row.run_id}
    agent = row.agent_id
    return of_message(
        "receive", system=system, kind=agent.type, target=str(agent), run_id=row.run_id
    )


def name_of(call: EffectCall) -> str:
    """Return the name of an effect's span."""
    if call.verb in {"cancel", "status"}:  # their names are ids of runs
        return call.verb
    name = provider_and_model(call.name)[1] if call.verb == "llm" else call.name
    return f"{_OPERATIONS.get(call.verb, call.verb)} {name}"


def provider_and_model(name: str) -> tuple[str, str]:
    """Return both of ``provider:model``, as OpenTelemetry and the provider name them; "" for no provider."""
    provider, colon, model = name.partition(":")
    if not colon:
        return "", name
    provider = provider.removeprefix("gateway/")
    return _PROVIDERS.get(provider, provider), model


def of_effect(row: RunRow, call: EffectCall, *, session: str | None) -> Attributes:
    """Return the attributes of an effect's span at its start. `session` is for calls that name no session."""
    attributes: Attributes = {RUN_ID: row.run_id, "callboard.position": call.position}
    if call.verb == "llm":
        attributes |= _agent(row, call.session or session)
        provider, model = provider_and_model(call.name)
        attributes |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        if provider:
            attributes["gen_ai.provider.name"] = provider
    elif call.verb == "tool":
        attributes |= {
            **_agent(row, session),
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.tool_call_id or call.id,
        }
    elif (operation := _MEMORY.get(call.name)) is not None:
        attributes |= {**_agent(row, session), "gen_ai.operation.name": operation}
    return attributes


def of_hits(call: EffectCall, value: object) -> Attributes:
    """Return how many memories a search found; nothing for other effects."""
    if call.verb != "step" or call.name != "memory.recall" or not isinstance(value, list):
        return {}
    return {"callboard.memory.hits": len(value)}


def of_embedding(row: RunRow, model: str, *, session: str | None) -> tuple[str, Attributes]:
    """Return the name and attributes of the span of a request to an embedder; `model` is "" if unknown."""
    attributes: Attributes = {**_agent(row, session), "gen_ai.operation.name": "embeddings"}
    provider, name = provider_and_model(model)
    if name:
        attributes["gen_ai.request.model"] = name
    if provider:
        attributes["gen_ai.provider.name"] = provider
    return f"embeddings {name}".rstrip(), attributes


def of_window(receipt: Mapping[str, JsonValue]) -> Attributes:
    """Return the facts of a window's receipt: numbers and names, no content."""
    attributes: Attributes = {}
    for name in ("head", "cut", "turns", "tokens"):
        if isinstance(value := receipt.get(name), int):
            attributes[f"callboard.window.{name}"] = value
    parts = receipt.get("parts")
    for name, tokens in parts.items() if isinstance(parts, dict) else ():
        if isinstance(tokens, int):
            attributes[f"callboard.window.tokens.{name}"] = tokens
    for step in receipt_steps(receipt):
        name = f"callboard.window.dropped.{step.get('strategy')}"
        dropped_before, dropped_turns = attributes.get(name, 0), step.get("dropped")
        if isinstance(dropped_turns, int) and isinstance(dropped_before, int):
            attributes[name] = dropped_before + dropped_turns
    return attributes


def receipt_steps(receipt: Mapping[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
    """Yield the strategies that changed a window, as its receipt has them."""
    steps = receipt.get("steps")
    yield from (step for step in steps if isinstance(step, dict)) if isinstance(steps, list) else ()


def input_of(call: EffectCall) -> tuple[str, JsonValue]:
    """Return what an effect is given, which is content, and the name of its attribute."""
    try:
        arguments = from_json(call.arguments_json)
    except ValueError:  # nested deeper than this reads: nothing that the effect may fail for
        arguments = None
    arguments = arguments if isinstance(arguments, list) else []
    # What a model is given stands in front of the options; there may be a session in front of it.
    content = arguments[-2:-1] if call.verb == "llm" else arguments[1:2]
    return _INPUTS.get(call.verb, "callboard.effect.arguments"), content[0] if content else None


def of_answer(answer: Mapping[str, object]) -> Iterator[tuple[str, AttributeValue]]:
    """Yield what a model's answer adds, without what it says."""
    usage = answer.get("usage")
    if isinstance(usage, dict):
        for ours, theirs in _TOKENS.items():
            if isinstance(tokens := usage.get(ours), int):
                yield f"gen_ai.usage.{theirs}", tokens
    if model := answer.get("model"):
        yield "gen_ai.response.model", str(model)
    if reason := answer.get("stop_reason"):
        yield "gen_ai.response.finish_reasons", [str(reason)]


def _agent(row: RunRow, session: str | None) -> Attributes:
    return {
        "gen_ai.agent.name": row.agent_id.type,
        "gen_ai.agent.id": str(row.agent_id),
        "gen_ai.conversation.id": session or row.run_id,
        RUN_ID: row.run_id,
        "callboard.tenant": row.agent_id.tenant,
    }


def started_at(
    row: RunRow, entries: Sequence[RunLogEntry], *, begin: datetime | None
) -> datetime | None:
    """Return when the run's code began: the log's first entry, if it is still there.

    A run without entries began with this execution, at `begin`: before that it waited in a queue.
    """
    if not entries:
        return begin or row.created_at
    first = entries[0]
    return first.ts if first.kind == K.RUN_STARTED else row.created_at or first.ts


def execution_before(entries: Sequence[RunLogEntry], seq: int) -> int | None:
    """Return the seq after which the previous execution began, if the log has it."""
    for entry in reversed(entries):
        is_start = entry.kind == K.RUN_RESUMED and entry.payload.get("reason") != OUTLIVED
        if (is_start or entry.kind == K.RUN_STARTED) and entry.seq - 1 < seq:
            return entry.seq - 1
        if entry.kind in {K.RUN_ATTEMPT_FAILED, K.RUN_CONTINUED} and entry.seq < seq:
            return entry.seq
    return None


def reason_of(loaded_run: LoadedRun, *, was_running: bool) -> str:
    """Return why the execution begins."""
    if not loaded_run.entries:
        return "started"
    if was_running:
        return "recovered"
    return _REASONS.get(loaded_run.entries[-1].kind, "woken")


def end_of(then: Then | None) -> str:
    """Return how the execution ended; `then` is None if that could not be written."""
    if then is None:
        return "broken_off"
    if isinstance(then, Finish):
        return then.status.value.lower()
    return _ENDS.get(type(then), "continued")


wanted_ids: ContextVar[SpanPlace | None] = ContextVar("callboard_wanted_ids", default=None)
"""Trace and span id of the span that is being started here and now, or None for any."""

executing: ContextVar[RunMeta | None] = ContextVar("callboard_run", default=None)
"""The run whose code executes here, or None. For log lines."""


def current_traceparent() -> str | None:
    """Return the span that is current in OpenTelemetry's context, as a ``traceparent``."""
    span_context = trace.get_current_span().get_span_context()
    if not span_context.is_valid:
        return None
    return SpanPlace(span_context.trace_id, span_context.span_id, span_context.trace_flags).header()


def traceparent_for(message: Message) -> str | None:
    """Return what causes a message from outside: what its metadata names, else the current span."""
    return caused_by(message.metadata) or current_traceparent()


def with_traceparent(message: Message) -> Message:
    """Return the message with the current span as its cause. It stays as it is if it names a cause already."""
    if TRACE_PARENT in message.metadata or (traceparent := current_traceparent()) is None:
        return message
    return replace(message, metadata={**message.metadata, TRACE_PARENT: traceparent})


def context_of(span_ids: SpanPlace) -> SpanContext:
    """Return a span of another process, as OpenTelemetry names it."""
    return SpanContext(
        span_ids.trace_id,
        span_ids.span_id,
        is_remote=True,
        trace_flags=TraceFlags(span_ids.flags & 1),
    )


def below(span_ids: SpanPlace | None) -> Context:
    """Return a context whose current span is `span_ids`, and which holds nothing else of this task's."""
    if span_ids is None:
        return Context()
    return trace.set_span_in_context(trace.NonRecordingSpan(context_of(span_ids)), Context())


def link_to(traceparent: str | None) -> tuple[Link, ...]:
    """Return a link to the span that a ``traceparent`` names, or none."""
    span_ids = parse_traceparent(traceparent)
    return () if span_ids is None else (Link(context_of(span_ids)),)


def nanoseconds(at: datetime) -> int:
    """Return an instant as spans have it, to the microsecond."""
    return round(at.timestamp() * 1_000_000) * 1000
