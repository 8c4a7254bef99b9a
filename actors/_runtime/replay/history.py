"""A run's log folded by position, and the rules that make a call a hit or a miss.

Pure: entries in, decisions out. The rules are docs/replay.md, "Hit or miss".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, cast

from actors._kernel.json import JsonValue
from actors._kernel.runtime.log_entry import EXECUTES, OUTLIVED, RunLogEntry
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import LoadedRun, RunRow
from actors._kernel.runtime.scheduler import DEFAULT_RETRY, RetryPolicy
from actors.errors import NonDeterminismError

BEGINS: Final = EXECUTES | {K.TIMER_SET, K.ASK_SENT}
COUNTED: Final = frozenset({K.MSG_SENT, K.ASK_SENT, K.CHILD_SPAWNED})
"""Entries that are numbered at their position, so that each message and child has an id of its own."""

ENDS_OF: Final[dict[str, tuple[str, ...]]] = {
    K.EFFECT_INTENT: (K.EFFECT_RESULT, K.LLM_CALL),
    K.TOOL_CALLED: (K.TOOL_RESULT,),
    K.TIMER_SET: (K.TIMER_FIRED, K.MSG_RECEIVED),
    K.ASK_SENT: (K.ASK_REPLIED, K.ASK_TIMEOUT, K.EFFECT_RESULT),
}

SUPERVISOR: Final = "sup."
"""Prefix of positions of children that were spawned for a run from outside its code."""

PATCH: Final = "patch:"
"""Prefix of positions of `patched`, after the generation."""

PAID: Final = "~"
"""Separator in positions of paid calls that belong to a call (`P~0`): replay does not need to reach them."""

NO_PROGRESS: Final = EXECUTES | {K.RUN_RESUMED, K.RUN_SUSPENDED}
"""Entries that a host leaves which dies over and over in the same effect."""


@dataclass(slots=True)
class CallEntries:
    """Everything recorded at one position; the latest entry of each part counts."""

    begin: RunLogEntry | None = None
    end: RunLogEntry | None = None
    abandonment: RunLogEntry | None = None
    decision: RunLogEntry | None = None
    sent_count: int = 0
    """Number of messages and children that this position has made."""
    ends_void: bool = False
    """The recorded result ended an attempt: the effect executes anew."""

    @property
    def result(self) -> RunLogEntry | None:
        """The entry with the call's result, or None if the call is made anew, also if it ended an attempt."""
        return None if self.ends_void else self.end


@dataclass(slots=True)
class History:
    """The replay map of one run.

    Attributes:
        calls: The entries of each call, by position. Entries of the run itself are in none.
        last_seq: The last seq of the log, -1 when empty.
        generation: Number of times that the run continued as new.
        attempt: The attempt that replays now, 1 for the first of this generation.
        recoveries: Number of times that a new owner found the run RUNNING, in this generation.
        deaths: Number of deaths in a row of hosts that may have been executing the run, as the marks of their
            heirs count them, without progress or rest between.
        turns: Number of turns among suspects that hosts have outlived since.
        has_outlived: True if the execution that wrote last had outlived its turn.
        progress_seq: The last entry that shows progress: one of a kind outside `NO_PROGRESS`.
        pool_keys: State keys that pool entries set, with the seq of the last one.
        unmet_positions: Positions with strict entries that the code has not asked for yet.
        children: Runs spawned in this generation, in order, with their agents.
        continuation: The entry that began this generation, or None in the first one.
        joined_runs: Recorded ends of the runs that were joined in this generation, by id.
        failures: When the attempts of this generation failed, but for those that took the run's messages
            apart: they count for none of them.
        refusal_counts: Number of refusals of a question, by its idempotency key, in this generation and before.
        version: Version of the agent that began this generation, or None if it has none.
        mode: Its agent's mode, from the generation's first entry, or None if the agent has none.
        retry: That agent's policy, if the call that started the run gave none.
        parent_agent: The agent that spawned the run, as far as the generation's first entry says.
        is_at_beginning: True if the log, as it was read, holds only starts and failures of executions, and
            no call of the code.
    """

    calls: dict[str, CallEntries] = field(default_factory=dict)
    last_seq: int = -1
    generation: int = 0
    attempt: int = 1
    recoveries: int = 0
    deaths: int = 0
    turns: int = 0
    has_outlived: bool = False
    progress_seq: int = -1
    has_started: bool = False
    pool_keys: dict[str, int] = field(default_factory=dict)
    unmet_positions: set[str] = field(default_factory=set)
    inputs: list[RunLogEntry] = field(default_factory=list)
    continuation: RunLogEntry | None = None
    children: dict[str, str] = field(default_factory=dict)
    joined_runs: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    failures: list[datetime] = field(default_factory=list)
    refusal_counts: dict[str, int] = field(default_factory=dict)
    version: str | None = None
    mode: str | None = None
    retry: RetryPolicy | None = None
    parent_agent: str | None = None
    is_at_beginning: bool = True
    _limits: list[tuple[int, int]] = field(default_factory=list)
    _abandoned_calls: list[CallEntries] = field(default_factory=list)
    """The calls of the last entries, if these abandon effects."""

    @classmethod
    def of(cls, entries: Sequence[RunLogEntry]) -> History:
        """Return the fold of a log, or of its part since the last ``run.continued``."""
        history = cls()
        if not entries:
            return history
        history.last_seq = entries[-1].seq
        start = _generation_start(entries)
        current = entries[start:]
        if not current:
            return history
        history.has_started = True
        first = current[0].payload
        history.version, history.mode = _text_in(first, "version"), _text_in(first, "mode")
        history.parent_agent = _text_in(first, "parent")
        history.retry = retry_in(first)
        failed_attempts = [e for e in current if e.kind == K.RUN_ATTEMPT_FAILED]
        history.attempt = 1 + len(failed_attempts)
        # An attempt that gave messages back is no failure of those that it kept: the retry policy does not
        # count it.
        history.failures = [e.ts for e in failed_attempts if "kept" not in e.payload]
        history._limits = [(e.seq, int(str(e.payload["retry_from"]))) for e in failed_attempts]
        # The error that ended an attempt is not met again: its effect executes anew in the next attempt.
        void_seqs = {
            int(str(e.payload["retry_from"]))
            for e in failed_attempts
            if e.payload.get("ending") is not None
        }
        for entry in current:
            history._add(entry, is_void=entry.seq in void_seqs)
        history._find_strict()
        has_begun = history.calls or history.children or history.generation
        history.is_at_beginning = not has_begun
        return history

    @classmethod
    def of_run(cls, loaded_run: LoadedRun) -> History:
        """Return the fold of a run's log; of one that cannot be read only where it ends."""
        history = cls.of(loaded_run.entries)
        if loaded_run.unreadable is not None:
            history.last_seq, history.attempt = loaded_run.row.last_seq, loaded_run.row.attempt
        return history

    @property
    def execution_number(self) -> int:
        """The number of this execution from the beginning, from 1. Every retry and every recovery counts."""
        return self.attempt + self.recoveries

    def without_progress(self, seqs: Iterable[int]) -> int:
        """Return the number of these ends of the log after which no entry was added."""
        return sum(seq >= self.progress_seq for seq in seqs)

    def _add(self, entry: RunLogEntry, *, is_void: bool) -> None:
        if entry.kind == K.RUN_PARKED:
            # The parking closed these branches, not the code: the next execution comes to these calls again.
            for entries in self._abandoned_calls:
                entries.abandonment = None
        if entry.kind != K.EFFECT_ABANDONED:
            self._abandoned_calls.clear()
        if not entry.position:
            self._add_own(entry)
            return
        kind, position = entry.kind, entry.position
        if kind not in EXECUTES:
            self.deaths, self.turns, self.has_outlived = 0, 0, False
            self.progress_seq = entry.seq
        if position.startswith("in."):
            self.inputs.append(entry)
            return
        if kind == K.CHILD_SPAWNED:
            self.children[str(entry.payload["child"])] = str(entry.payload["agent"])
        elif kind == K.CHILD_COMPLETED:
            self.joined_runs[str(entry.payload["child"])] = entry.payload
        if not position.startswith(SUPERVISOR):  # else spawned for the run, not by its code
            self._add_call_entry(entry, is_void=is_void)

    def _clear(self) -> None:
        self.deaths, self.turns, self.has_outlived = 0, 0, False

    def _add_own(self, entry: RunLogEntry) -> None:
        """Add an entry of the run itself."""
        kind = entry.kind
        reason = entry.payload.get("reason") if kind == K.RUN_RESUMED else None
        if reason == "recovered":
            self.deaths += entry.payload.get("died") is not False
            self.recoveries += 1
            self.has_outlived = False
        elif reason == OUTLIVED:
            self.turns += 1
            self.has_outlived = True
        elif kind == K.RUN_SUSPENDED:
            self._clear()  # its code came to a wait, or the host went in order
        elif kind not in NO_PROGRESS:
            self._clear()
            self.progress_seq = entry.seq
        if kind == K.RUN_CONTINUED:
            self.continuation = entry
            self.generation = int(str(entry.payload["generation"]))
            self.refusal_counts = cast("dict[str, int]", entry.payload.get("refused", {})).copy()
        elif kind == K.RUN_ATTEMPT_FAILED and "kept" in entry.payload:
            del self.inputs[int(str(entry.payload["kept"])) :]

    def _add_call_entry(self, entry: RunLogEntry, *, is_void: bool) -> None:
        kind = entry.kind
        entries = self.calls.get(entry.position)
        if entries is None:
            entries = self.calls[entry.position] = CallEntries()
        if kind in COUNTED:
            entries.sent_count += 1
        if kind in BEGINS:
            entries.begin, entries.end, entries.abandonment, entries.decision = (
                entry,
                None,
                None,
                None,
            )
        elif kind == K.IN_DOUBT_RESOLVED:
            entries.decision = entry
        elif kind == K.EFFECT_ABANDONED:
            entries.abandonment = entry
            self._abandoned_calls.append(entries)
        else:
            # The beginning here is that of another call at this position, and is no part of this result.
            if entries.begin is not None and not _belongs(entries.begin, entry):
                entries.begin = None
            entries.end, entries.ends_void = entry, is_void
            if kind == K.STATE_SET and not self.is_strict(entry.seq):
                self.pool_keys[str(entry.payload["key"])] = entry.seq

    def _find_strict(self) -> None:
        for position, entries in self.calls.items():
            if PATCH in position or PAID in position:
                continue  # code without the call `patched` takes its path in any case
            entry = entries.end or entries.begin
            if entry is None or entries.ends_void:
                continue
            if not self._limits or self.is_strict(entry.seq):
                self.unmet_positions.add(position)

    def is_strict(self, seq: int) -> bool:
        """Return True if an entry must be met again exactly: no attempt failed before it, seen from later."""
        return all(seq <= retry_from for failed_at, retry_from in self._limits if failed_at > seq)

    def is_replaying(self) -> bool:
        """Return True if the code has not reached the end of what must be met again."""
        return bool(self.unmet_positions)

    def meet(
        self, position: str, kinds: Iterable[str], what: str, digest: str
    ) -> CallEntries | None:
        """Return what is recorded at `position` for this call, or None for a miss.

        Args:
            position: Position of the call.
            kinds: Kinds of the entries that record such a call.
            what: The call in words, for the error.
            digest: Hash of its arguments.

        Raises:
            NonDeterminismError: A strict entry is of another kind or hash.
        """
        entries = self.calls.get(position)
        if entries is None:
            return None
        self.unmet_positions.discard(position)
        entry = entries.end or entries.begin
        if entry is None:
            return None
        payload = entry.payload
        if entry.kind in kinds:
            recorded_digest = payload.get("hash")
            if recorded_digest is None and entries.begin is not None:
                # An end without a hash (a timer that fired) has that of its beginning.
                recorded_digest = entries.begin.payload.get("hash")
            if recorded_digest in (digest, None):
                return entries
        if self.is_strict(entry.seq) and not entries.ends_void:
            name = payload.get("name") or payload.get("verb") or payload.get("key") or ""
            recorded_call = f"{entry.kind} {name} (hash {payload.get('hash', '-')})".replace(
                "  ", " "
            )
            raise NonDeterminismError(position, recorded_call, f"{what} (hash {digest})")
        return None

    @property
    def unjoined_children(self) -> tuple[str, ...]:
        """Children of this generation that were not joined, in the order in which they were spawned."""
        return tuple(child for child in self.children if child not in self.joined_runs)

    def next_number_at(self, position: str) -> int:
        """Return the number of the next message or child of `position`: how many were made there."""
        entries = self.calls.get(position)
        return entries.sent_count if entries is not None else 0

    def first_unmet_position(self) -> str | None:
        """Return the first strict position the code did not ask for, if it has ended without it."""
        return min(self.unmet_positions, default=None)


def policy_of(run: RunRow, entries: Iterable[RunLogEntry]) -> RetryPolicy:
    """Return a run's retry policy: that of the call that started it, else its agent's, else the default."""
    policy = None
    for entry in entries:
        if entry.kind in (K.RUN_STARTED, K.RUN_CONTINUED):
            policy = retry_in(entry.payload)
    return run.retry_policy or policy or DEFAULT_RETRY


def retry_in(payload: dict[str, JsonValue]) -> RetryPolicy | None:
    """Return the policy that the first entry of a generation keeps, or None if it keeps none."""
    data = payload.get("retry")
    return None if data is None else RetryPolicy.model_validate(data)


def _text_in(payload: dict[str, JsonValue], key: str) -> str | None:
    value = payload.get(key)
    return None if value is None else str(value)


def _generation_start(entries: Sequence[RunLogEntry]) -> int:
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].kind == K.RUN_CONTINUED:
            return index
    # A queued run whose messages could not be read was parked before it started.
    return next((n for n, entry in enumerate(entries) if entry.kind != K.RUN_PARKED), len(entries))


def _belongs(begin: RunLogEntry, end: RunLogEntry) -> bool:
    """Return True if an end is that of this beginning, not of another call at the same position."""
    digest = end.payload.get("hash")
    is_call = digest is None or digest == begin.payload.get("hash")
    return end.kind in ENDS_OF[begin.kind] and is_call
