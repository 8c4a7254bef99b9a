"""Spans of runs, over the OpenTelemetry API alone; docs/tracing.md shows what comes out.

A run has one root span, exported by the host that ends it, and one span per execution (from its begin
to its suspension or end), exported by the host that ends that. Their ids follow from the run
(`actors._kernel.tracing`), so hosts can name spans that others export. The API cannot say which id a
span gets: `wanted_ids` passes it to an id generator that knows (`compose._assembly.telemetry`). With another
one ids are random: still one trace, whose parents are named but never exported.

A crash loses what was not exported. Of an execution that was broken off the next one exports what the log
shows; a root span whose host dies between the last commit and the export is not exported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode

from actors._kernel.basics import Clock
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Finish, Retry, Then
from actors._kernel.runtime.effects import EffectCall
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import Arrived, LoadedRun, RunRow
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.runtime.waits import Wait
from actors._kernel.tracing import SpanPlace, caused_by, execution_span_id, parent_span, root_span
from actors._runtime.telemetry import span_attributes as facts
from actors._runtime.telemetry.span_attributes import (
    Attributes,
    below,
    context_of,
    link_to,
    nanoseconds,
    wanted_ids,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

MAX_LINKS: Final = 100
"""A run is given at most so many messages at its start; each may link to its sender."""

MAX_INTERRUPTED: Final = 100
"""Maximum number of interrupted waits of one execution whose spans are exported: the last ones."""

_WAITS: Final = {"receive": SpanKind.CONSUMER, "ask": SpanKind.CLIENT}


class Tracing:
    """Makes the spans of one host's runs.

    Args:
        provider: The source of tracers; OpenTelemetry's global one when left out.
        system: What moves messages, ``nats`` or ``callboard``.
        ratio: Share of the traces that begin here and are recorded. The same on all hosts.
        show: Function that turns content into the text of an attribute, or None if no content is shown, and
            no message of an error.
    """

    system: str
    ratio: float
    show: Callable[[JsonValue], str] | None

    def __init__(
        self,
        provider: TracerProvider | None = None,
        *,
        system: str = "callboard",
        ratio: float = 1.0,
        show: Callable[[JsonValue], str] | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("callboard", tracer_provider=provider)
        self.system, self.ratio, self.show = system, ratio, show

    @classmethod
    def configured(cls) -> Tracing | None:
        """Return the tracing of this process if it has chosen a tracer provider, else None."""
        provider = trace.get_tracer_provider()
        is_default = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
        return None if is_default else cls(provider)

    def start(
        self,
        name: str,
        at: datetime,
        *,
        attributes: Attributes,
        parent: Context | None = None,
        ids: SpanPlace | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        """Start a span, with the ids of `ids` if that is given; below the current one by default."""
        token = wanted_ids.set(ids) if ids is not None else None
        try:
            return self._tracer.start_span(
                name,
                parent,
                kind=kind,
                attributes=attributes,
                links=links,
                start_time=nanoseconds(at),
            )
        finally:
            if token is not None:
                wanted_ids.reset(token)

    def show_content(self, span: Span, key: str, value: JsonValue) -> None:
        """Show content, where that is wanted."""
        if self.show is not None and span.is_recording():
            span.set_attribute(key, self.show(value))

    def mark_failed(self, span: Span, kind: str, message: str) -> None:
        """Mark a span as failed; its message is content."""
        span.set_attribute("error.type", kind)
        text = self.show(message) if self.show is not None else None
        span.set_status(Status(StatusCode.ERROR, text))

    def mark_error(self, span: Span, record: JsonValue) -> None:
        """Mark a span as failed with a recorded error."""
        error = record if isinstance(record, dict) else {}
        self.mark_failed(span, str(error.get("type") or "error"), str(error.get("message") or ""))

    def export_run(
        self,
        row: RunRow,
        entries: Sequence[RunLogEntry],
        then: Finish,
        *,
        at: datetime,
        begin: datetime | None = None,
        session: str | None = None,
    ) -> None:
        """Export a run's root span; the run's end is durable.

        Args:
            row: The run.
            entries: The entries of its log, as they were loaded.
            then: The outcome of the run.
            at: The instant of the end.
            begin: The start of the execution that ended it.
            session: Its conversation, or None if this execution does not know it.
        """
        ids = root_span(row, self.ratio)
        if not ids.is_sampled:
            return
        span = self.start(
            f"invoke_agent {row.agent_id.type}",
            facts.started_at(row, entries, begin=begin) or at,
            attributes=facts.of_run(row, then.status.value, session=session),
            parent=below(parent_span(row, ids)),
            ids=ids,
            kind=SpanKind.CONSUMER if row.parent is None else SpanKind.INTERNAL,
        )
        if then.error:
            self.mark_error(span, then.error)
        span.end(nanoseconds(at))


class ExecutionSpans:
    """The spans of one execution of a run, and of what its code does live. Replayed calls have none.

    Attributes:
        header: The ``traceparent`` of all that the run sends: its root span, so that a replay sends
            the same.
        session: The conversation of calls that name none; set once the run's messages are known.
    """

    def __init__(
        self,
        tracing: Tracing,
        loaded_run: LoadedRun,
        lease: Lease,
        *,
        clock: Clock,
        was_running: bool,
        mail: Sequence[Arrived],
    ) -> None:
        self._tracing, self._loaded_run, self._clock = tracing, loaded_run, clock
        self._begin = clock.now()
        self._seq = loaded_run.entries[-1].seq if loaded_run.entries else -1
        self._root = root_span(loaded_run.row, tracing.ratio)
        self.header: str = self._root.header()
        self.session: str | None = None
        if self._root.is_sampled:
            self._span = self._begin_span(lease, was_running=was_running, mail=mail)
        else:
            self._span = NonRecordingSpan(context_of(self._ids(self._seq)))
        self._context = trace.set_span_in_context(self._span, Context())
        self._interrupted: deque[tuple[Span, int]] = deque(maxlen=MAX_INTERRUPTED)

    def _ids(self, seq: int) -> SpanPlace:
        span_id = execution_span_id(self._loaded_run.row.run_id, seq)
        return SpanPlace(self._root.trace_id, span_id, self._root.flags)

    def _begin_span(self, lease: Lease, *, was_running: bool, mail: Sequence[Arrived]) -> Span:
        links = [link for item in mail[1:] for link in link_to(caused_by(item.message.metadata))]
        previous_seq = facts.execution_before(self._loaded_run.entries, self._seq)
        if previous_seq is not None:
            links.append(Link(context_of(self._ids(previous_seq))))
            if was_running:
                # The host of that execution was lost: its span is made from its entries in the log.
                entries = [entry for entry in self._loaded_run.entries if entry.seq > previous_seq]
                span = self._start_span(
                    previous_seq, entries[0].ts, (), {"callboard.turn.end": "lost"}
                )
                self._tracing.mark_failed(span, "host_lost", "")
                span.end(nanoseconds(entries[-1].ts))
        reason = facts.reason_of(self._loaded_run, was_running=was_running)
        return self._start_span(
            self._seq,
            self._begin,
            links[:MAX_LINKS],
            {
                "callboard.turn.reason": reason,
                "callboard.attempt": lease.attempt,
                "callboard.host": lease.owner,
            },
        )

    def _start_span(
        self, seq: int, at: datetime, links: Sequence[Link], attributes: Attributes
    ) -> Span:
        run_id = self._loaded_run.row.run_id
        return self._tracing.start(
            "runtime.turn",
            at,
            attributes={facts.RUN_ID: run_id, "callboard.turn.seq": seq, **attributes},
            parent=below(self._root),
            ids=self._ids(seq),
            links=links,
        )

    def enter(self) -> None:
        """Make the execution the current span of this task and of all that it starts."""
        attach(self._context)

    def end(self, then: Then | None, *, upto: int, is_left: bool) -> None:
        """Export the execution's span, and the run's if the run ended with it.

        Args:
            then: The outcome of the execution, or None if it could not be written.
            upto: Seq of the last durable entry. An execution that wrote nothing has no span.
            is_left: True if the host that goes on with the run exports this execution.
        """
        if not self._root.is_sampled:
            return
        now = self._clock.now()
        if upto > self._seq and not is_left:
            for span, ended_at in self._interrupted:
                span.end(ended_at)
            self._span.set_attribute("callboard.turn.end", facts.end_of(then))
            if isinstance(then, Finish) and then.error:
                self._tracing.mark_error(self._span, then.error)
            elif isinstance(then, Retry):
                self._tracing.mark_failed(self._span, "attempt_failed", "")
            self._span.end(nanoseconds(now))
        if isinstance(then, Finish):
            row, entries = self._loaded_run.row, self._loaded_run.entries
            self._tracing.export_run(
                row, entries, then, at=now, begin=self._begin, session=self.session
            )

    def point(
        self, verb: str, kind: str, *, target: str, message_id: str | None, payload: JsonValue
    ) -> None:
        """Export the span of a message that leaves with the next flush. It takes no time of its own."""
        if not self._span.is_recording():
            return
        attributes = facts.of_message(
            "send",
            system=self._tracing.system,
            kind=kind,
            target=target,
            run_id=self._loaded_run.row.run_id,
        )
        if message_id is not None:
            attributes["messaging.message.id"] = message_id
        now = self._clock.now()
        span = self._tracing.start(
            f"{verb} {kind}", now, attributes=attributes, kind=SpanKind.PRODUCER
        )
        self._tracing.show_content(span, "callboard.message.payload", payload)
        span.end(nanoseconds(now))

    async def effect(self, call: EffectCall) -> Any:
        """Execute an effect in a span of its own, the current one meanwhile."""
        if not self._span.is_recording():
            return await call.execute()
        span = self._tracing.start(
            facts.name_of(call),
            self._clock.now(),
            attributes=facts.of_effect(self._loaded_run.row, call, session=self.session),
            kind=SpanKind.CLIENT if call.verb == "llm" else SpanKind.INTERNAL,
        )
        token = attach(trace.set_span_in_context(span))
        try:
            if self._tracing.show is not None:
                self._tracing.show_content(span, *facts.input_of(call))
            value = await call.execute()
            span.set_attributes(facts.of_hits(call, value))
            self._show_result(span, call.verb, value)
        # Also a cancellation and `SystemExit`: a span without a status would look like a success.
        except BaseException as exc:
            self._tracing.mark_failed(span, type(exc).__qualname__, str(exc))
            raise
        finally:
            detach(token)
            now = nanoseconds(self._clock.now())
            if call.receipt is not None:
                span.add_event("callboard.window", facts.of_window(call.receipt), now)
            span.end(now)
        return value

    @contextmanager
    def embedding(self, model: str) -> Iterator[None]:
        """Make a span of a request to an embedder, below the effect that makes it."""
        if not self._span.is_recording():
            yield
            return
        name, attributes = facts.of_embedding(self._loaded_run.row, model, session=self.session)
        span = self._tracing.start(
            name, self._clock.now(), attributes=attributes, kind=SpanKind.CLIENT
        )
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        # Also a cancellation: a span without a status would look like a success.
        except BaseException as exc:
            self._tracing.mark_failed(span, type(exc).__qualname__, str(exc))
            raise
        finally:
            span.end(nanoseconds(self._clock.now()))

    def _show_result(self, span: Span, verb: str, value: Any) -> None:
        if verb == "llm" and isinstance(value, dict):
            for name, fact in facts.of_answer(value):
                span.set_attribute(name, fact)
            self._tracing.show_content(span, "gen_ai.output.messages", value.get("content"))
        elif verb == "tool" and isinstance(value, dict):
            if value.get("status") != "ok":
                kind = value.get("error_type") or value.get("status") or "error"
                self._tracing.mark_failed(span, str(kind), str(value.get("text") or ""))
            self._tracing.show_content(span, "gen_ai.tool.call.result", value)
        elif value is None or isinstance(value, str | int | float | bool | list | dict):
            self._tracing.show_content(span, "callboard.effect.result", value)

    @contextmanager
    def waiting(self, verb: str) -> Iterator[WaitSpan]:
        """Make a span of the part of a wait that lies in this execution; the rest is in later ones."""
        wait_span = WaitSpan(self._tracing, verb, self._start_wait(verb))
        try:
            yield wait_span
        # Exported with the execution's span: an execution that is woken in vain exports no spans.
        except BaseException:
            wait_span.span.set_attribute("callboard.wait.end", "interrupted")
            self._interrupted.append((wait_span.span, nanoseconds(self._clock.now())))
            raise
        wait_span.span.end(nanoseconds(self._clock.now()))

    def _start_wait(self, verb: str) -> Span:
        if not self._span.is_recording():
            return trace.INVALID_SPAN
        return self._tracing.start(
            verb,
            self._clock.now(),
            kind=_WAITS.get(verb, SpanKind.INTERNAL),
            attributes=facts.of_wait(self._loaded_run.row, verb, system=self._tracing.system),
        )


class WaitSpan:
    """The span of one wait."""

    def __init__(self, tracing: Tracing, verb: str, span: Span) -> None:
        self._tracing, self._verb, self.span = tracing, verb, span

    def note_target(self, row: Wait | None) -> None:
        """Note the agent that it waits for, if that is known by now."""
        if row is not None and row.agent is not None:
            self.span.update_name(f"{self._verb} {row.agent.type}")
            self.span.set_attribute("callboard.target", str(row.agent))

    def note_end(self, mail: Arrived | None, payload: dict[str, JsonValue]) -> None:
        """Note what ended the wait."""
        if not self.span.is_recording():
            return
        if "outcome" in payload or "status" in payload:
            outcome = payload.get("outcome") or payload.get("status")
            self.span.set_attribute("callboard.wait.end", str(outcome))
        if payload.get("status") == "error":
            self._tracing.mark_error(self.span, payload.get("error"))
        if mail is not None:
            message = mail.message
            self.span.set_attribute("messaging.message.id", message.id)
            for link in link_to(caused_by(message.metadata)):
                self.span.add_link(link.context)
            self._tracing.show_content(self.span, "callboard.message.payload", message.payload)
