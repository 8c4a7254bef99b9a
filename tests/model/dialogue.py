"""The predicted state of a session after each act: statuses, order, nodes, head, and its readers' events.

An act happens while each run waits or has ended. So the model predicts all of it exactly, except
for the place of a fact among the entries of the run that is active then, see `Segment`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Event: TypeAlias = tuple[str, str, Any]
"""Its type, the label of its run, and what else it says."""

MODES: Final = {"signal": "wait", "child": "boss"}
"""The modes of messages by their prefix; all others have the usual one."""
ASKING: Final = ("ask", "tell", "crack")
"""Messages that the model answers with a tool call that needs an approval."""
WINDOW: Final = 4
"""Maximum number of earlier turns in the model's window; a call and its result stay together."""
ROOT: Final = -1
"""No node: the next message starts a new conversation."""
ASKED: Final = "cancel_requested"
ABOUT_DEATHS: Final = ("run_resumed", "run_waiting")
"""Events that depend on the moment at which a host dies: a run is evicted at its first wait after that."""
ENDS: Final = {"completed": "run_completed", "failed": "run_failed", "cancelled": "run_cancelled"}


@dataclass(frozen=True, slots=True)
class Told:
    """A message of a client. Its text is its kind and its label. `parent`: a node, or `ROOT`."""

    label: str
    kind: str
    sender: str
    parent: int | None = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return f"{self.kind} {self.label}"


@dataclass(slots=True)
class Node:
    """A turn, and the number of the one before it."""

    role: str
    text: str
    parent: int | None
    run: str
    calls: bool = False

    @property
    def is_visible(self) -> bool:
        """Whether it is shown to users."""
        return self.role != "tool" and bool(self.text)


@dataclass(slots=True)
class Run:
    """A run. `waits`: its awaited event, if it is active; None: it is queued or has ended."""

    label: str
    messages: list[Told]
    status: str = "queued"
    waits: str | None = None
    own: list[int] = field(default_factory=list)
    is_asked: bool = False
    """A client requested its cancel."""
    is_evicted: bool = False
    """It waits as rows: after a crash a run is evicted at its first wait."""

    @property
    def mode(self) -> str:
        """The mode of its first message."""
        return MODES.get(self.messages[0].kind, "normal")


@dataclass(slots=True)
class Segment:
    """The events from the start of a run to its end: each list keeps its order, they mix in any way.

    Attributes:
        entries: Of the run.
        facts: Of runs that were queued, or cancelled while they were.
    """

    entries: list[Event] = field(default_factory=list)
    facts: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class Dialogue:
    """One session.

    Attributes: drops: Runs that wait are evicted at once, which their events show. eras: The events
    between one deletion and the next. windows: The model's window, by the last text. asked: Number
    of model calls, by that text. resumes: Whether events of resumes are predicted: if a host may
    crash meanwhile, they are open. cuts: Last nodes that windows have left out; None: no cut is
    made.
    """

    drops: bool
    eras: list[list[Segment]] = field(default_factory=lambda: [[]])
    nodes: list[Node] = field(default_factory=list)
    head: int | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    facts: list[tuple[str, str, int]] = field(default_factory=list)
    number: int = 0
    active: Run | None = None
    queue: list[Run | Told] = field(default_factory=list)
    is_there: bool = False
    windows: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    request_counts: Counter[str] = field(default_factory=Counter)
    cuts: set[int] | None = None
    resumes: bool = True
    is_held: bool = False
    """No run starts for now."""

    @property
    def open_runs(self) -> list[Run]:
        """Return the runs that have not ended, in the order of their start."""
        queued = [item for item in self.queue if isinstance(item, Run)]
        return ([] if self.active is None else [self.active]) + queued

    def path(self) -> list[int]:
        """Return the nodes from the first to the active one."""
        numbers, at = list[int](), self.head
        while at is not None:
            numbers.append(at)
            at = self.nodes[at].parent
        return numbers[::-1]

    def start(self, message: Told, conflict: str) -> str:
        """Add a client's message. Return the label of its run, or the name of the error."""
        if message.parent is not None and message.parent >= len(self.nodes):
            return "UnknownNodeError"
        busy = self.active
        if busy is not None and conflict == "reject":
            return "RunConflictError"
        if busy is not None and conflict == "join":
            self.queue.append(message)
            return busy.label
        run = self.runs[message.label] = Run(message.label, [message])
        ahead = len(self.open_runs)
        self.is_there = True
        if busy is not None and conflict == "interrupt":
            self.ask_to_stop(busy, "interrupted")
        self.queue.append(run)
        self._fact("queued", run, ahead)
        if ahead:
            self._segment(None if busy is None else busy.label).facts.append(
                ("run_queued", run.label, ahead)
            )
        if busy is not None and conflict == "interrupt":
            self._end(busy, "cancelled", "interrupted")
        self._go_on()
        return run.label

    def cancel(self, run: Run) -> str:
        """Cancel a run; return its status."""
        self.ask_to_stop(run, "")
        if run is self.active:
            self._end(run, "cancelled", "")
            self._go_on()
        elif run.status == "queued":
            self.queue.remove(run)
            run.status = "cancelled"
            self._fact("ended", run)
            label = None if self.active is None else self.active.label
            new_facts = [("run_cancelled", run.label, ""), ("run_dequeued", run.label, None)]
            self._segment(label).facts.extend(new_facts)
        return run.status

    def ask_to_stop(self, run: Run, reason: str) -> None:
        """The first part of a cancel, of which the host is notified soon; no effect if it was already."""
        if run.is_asked or run not in self.open_runs:
            return
        run.is_asked = True
        self._fact("cancelling", run)
        label = None if self.active is None else self.active.label
        self._segment(label).facts.append((ASKED, run.label, reason))

    def let_go(self, *, approve: bool) -> None:
        """Deliver the event that the active run waits for."""
        run = self.active
        assert run is not None
        assert run.waits is not None
        waits, run.waits = run.waits, None
        if (self.drops or run.is_evicted) and waits != "gate":
            self._say(run, "run_resumed", "woken")
        run.is_evicted = False
        if waits == "gate":
            self._answer(run, f"re {run.messages[-1].text}")
        elif waits == "approval":
            self._decide(run, approve=approve)
        elif waits == "child":
            output = f"kid {run.messages[0].text}"
            self._say(run, "child_finished", "COMPLETED")
            self._end(run, "completed", output)
        else:
            self._end(run, "completed", "woke")
        self._go_on()

    def release(self) -> None:
        """Let runs begin again."""
        self.is_held = False
        self._go_on()

    def crash(self) -> None:
        """Crash the host, and let another one continue."""
        run = self.active
        if run is not None and (run.waits == "gate" or not (self.drops or run.is_evicted)):
            self._say(run, "run_resumed", "recovered")
            if run.waits != "gate":
                self._say(run, "run_waiting", ("go",) if run.waits == "signal" else ())
                run.is_evicted = True
        if run is not None and run.waits == "gate":
            self.request_counts[run.messages[-1].text] += 1

    def switch(self, node: int) -> str:
        """Make a node the active one."""
        if not self.is_there:
            return "UnknownSessionError"
        if self.open_runs:
            return "SessionActiveError"
        if node >= len(self.nodes):
            return "UnknownNodeError"
        self.head = None if node == ROOT else node
        return "ok"

    def delete(self) -> str:
        """Delete everything but the number of the last fact."""
        if not self.is_there:
            return "UnknownSessionError"
        if self.open_runs:
            return "SessionActiveError"
        report = f"{len(self.facts) + 1} rows, {len(self.nodes)} turns"
        self.number += len(self.facts)
        self.is_there, self.head = False, None
        self.nodes, self.facts, self.runs = [], [], {}
        self.cuts = None if self.cuts is None else set()
        self.eras.append([])
        return report

    def _fact(self, kind: str, run: Run, ahead: int = 0) -> None:
        self.facts.append((kind, run.label, ahead))

    def _segment(self, label: str | None) -> Segment:
        """Return the segment of the active run, or a new one for events without a run."""
        era = self.eras[-1]
        if label is None or not era:
            era.append(Segment())
        return era[-1]

    def _say(self, run: Run, type_: str, detail: Any = None) -> None:
        if self.resumes or type_ not in ABOUT_DEATHS:
            self.eras[-1][-1].entries.append((type_, run.label, detail))

    def _go_on(self) -> None:
        """Start the first entry of a free agent's queue: a run, or all messages before the next queued run."""
        while self.active is None and self.queue and not self.is_held:
            first = self.queue[0]
            if isinstance(first, Run):
                self.queue.remove(first)
                self._begin(first)
                continue
            mail, senders = list[Told](), set[str]()
            for queued_item in self.queue:
                if isinstance(queued_item, Run):
                    senders.add(queued_item.messages[0].sender)
                elif queued_item.sender not in senders:
                    mail.append(queued_item)
            self.queue = [item for item in self.queue if item not in mail]
            run = Run(f"mail {mail[0].label}", mail)
            self.runs[run.label] = run
            self._begin(run)

    def _begin(self, run: Run) -> None:
        run.status, self.active = "running", run
        self._fact("started", run)
        self.eras[-1].append(Segment())
        self._say(run, "loop_started", run.mode)
        parent = run.messages[0].parent
        if parent is not None:
            self.head = None if parent == ROOT else parent
        if run.mode == "boss":
            self._say(run, "child_started")
            self._wait(run, "child")
        elif run.mode == "wait":
            self._wait(run, "signal", ("go",))
        else:
            self._ask_model(run)

    def _wait(self, run: Run, what: str, signals: tuple[str, ...] = ()) -> None:
        run.waits = what
        if self.drops and what != "gate":
            self._say(run, "run_waiting", signals)

    def _ask_model(self, run: Run) -> None:
        last = run.messages[-1]
        window = window_of([self.nodes[n] for n in self._source()])
        self.request_counts[last.text] += 2 if last.kind == "fail" else 1
        self.windows[last.text] = [*window, *(("user", message.text) for message in run.messages)]
        if last.kind == "hold":
            self._wait(run, "gate")
        elif last.kind == "fail":
            self._hear(run)
            self._fail(run)
        elif last.kind in ASKING:
            self._hear(run)
            self._add(run, "assistant", "let me" if last.kind == "tell" else "", calls=True)
            self._say(run, "approval_requested", "tool pay")
            self._wait(run, "approval")
        else:
            self._answer(run, f"re {last.text}")

    def _source(self) -> list[int]:
        """Return the nodes of a window: those after the last cut on the path. It may make a new cut."""
        path = self.path()
        if self.cuts is None:
            return path
        upto = max(self.cuts.intersection(path), default=-1)
        source = [n for n in path if n > upto]
        if len(source) > WINDOW:
            self.cuts.add(source[-WINDOW - 1])
        return source

    def _decide(self, run: Run, *, approve: bool) -> None:
        self._say(run, "approval_decided", "approved" if approve else "denied")
        if approve:
            self._say(run, "tool_started", "pay")
            self._say(run, "tool_finished", "ok")
        self._add(run, "tool", "")
        if run.messages[-1].kind == "crack":
            self._fail(run)
        else:
            self._finish(run, f"done {run.messages[-1].text}")

    def _hear(self, run: Run) -> None:
        for message in run.messages:
            self._add(run, "user", message.text)

    def _answer(self, run: Run, text: str) -> None:
        self._hear(run)
        self._finish(run, text)

    def _finish(self, run: Run, text: str) -> None:
        self._add(run, "assistant", text)
        self._end(run, "completed", text)

    def _fail(self, run: Run) -> None:
        self._say(run, "attempt_failed", 1)
        self._end(run, "failed", "builtins:ValueError")

    def _add(self, run: Run, role: str, text: str, *, calls: bool = False) -> None:
        self.nodes.append(Node(role, text, self.head, run.label, calls))
        self.head = len(self.nodes) - 1
        run.own.append(self.head)
        self._say(run, "message", (role, text, self.head))

    def _end(self, run: Run, status: str, detail: str) -> None:
        if status != "completed" and not run.own:
            self._hear(run)
        is_in_memory = not (self.drops or run.is_evicted)
        if status == "cancelled" and is_in_memory and self.nodes[run.own[-1]].calls:
            self._add(run, "tool", "")  # the call was not executed
        run.status, run.waits, self.active = status, None, None
        self._say(run, ENDS[status], detail)
        self._fact("ended", run)
        seen = [n for n in run.own if self.nodes[n].is_visible]
        if status != "completed" and seen:
            self.head = seen[-1]


def window_of(nodes: list[Node]) -> list[tuple[str, str]]:
    """Return the model's window of these: the newest ones, and each call with a result."""
    groups: list[list[Node]] = []
    for node in nodes:
        if node.role == "tool" and groups and groups[-1][0].calls:
            groups[-1].append(node)
        else:
            groups.append([node])
    dropped_count = 0
    while len(nodes) - dropped_count > WINDOW and len(groups) > 1:
        dropped_count += len(groups.pop(0))
    window: list[tuple[str, str]] = []
    for group in groups:
        window += [(node.role, node.text) for node in group]
        if group[0].calls and len(group) == 1:
            window.append(("tool", ""))  # not called yet
    return window


def read_by(segments: list[Segment], events: list[Event], *, is_all: bool = True) -> str | None:
    """Return the error in a reader's events; None: each event came once, in a valid order.

    Args: segments: All events. events: Those that the reader got. is_all: The reader has read to
    the end.
    """
    rest = list(events)
    for segment in segments:
        entries, facts = list(segment.entries), list(segment.facts)
        while entries or facts:
            if not rest:
                return f"missing: {(entries + facts)[0]}" if is_all else None
            if entries and rest[0] == entries[0] and not _comes_before(facts, entries[0]):
                del entries[0]
            elif facts and rest[0] == facts[0]:
                del facts[0]
            else:
                return f"{rest[0]} where one of {entries[:1] + facts[:1]} had to come"
            del rest[0]
    return f"{rest[0]} behind the end" if rest else None


def _comes_before(facts: list[Event], entry: Event) -> bool:
    """Return whether one of the facts is the cancel request of the run that ends here."""
    is_end = entry[0] in ENDS.values()
    return is_end and any(fact[:2] == (ASKED, entry[1]) for fact in facts)
