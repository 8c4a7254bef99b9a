"""`ctx.approval`: a wait that a person's decision ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from actors.errors import ContractError
from actors.kernel.json import recordable
from actors.kernel.runtime.commit import Wait
from actors.kernel.runtime.communication import Approval, ApprovalStatus
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.ids import derive_id
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.seconds import is_length
from actors.kernel.text import check_text_of
from actors.runtime.recorded import raise_if_refused
from actors.runtime.waits import AnswerWait

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import Answer
    from actors.runtime.history import Place
    from actors.runtime.recorder import Recorder
    from actors.runtime.waits import Payload, Waits

PERSON = "person"
"""The target of such a question in the log."""
_KINDS = (K.ASK_SENT, K.ASK_REPLIED, K.ASK_TIMEOUT, K.EFFECT_RESULT)


async def approval(
    run: Recorder, waits: Waits, what: str, args: Any, *, timeout: float | None
) -> Approval:
    """See `RunContext.approval`."""
    verb = "approval"
    branch = run.turnstile.enter(verb)
    position = branch.take_position()
    check_text_of("what ctx.approval asks for", what)
    request: JsonValue = {"what": what, "args": recordable(args, where=f"approval {what!r}")}
    _check(timeout)
    digest = args_hash([verb, request, timeout])
    place = run.meet(position, _KINDS, f"approval {what}", digest)
    known = place.result if place is not None else None
    if known is not None:
        await run.turnstile.turn_for(branch, known.seq, verb)
        return _approval_of(known.seq, known.payload)
    key, at = _begun(place) or _begin(run, position, digest, timeout)
    run.answers.poke()

    async def prepare() -> Wait:
        return Wait(position, "approval", key, request=request, expires_at=at)

    def decided(answer: Answer) -> tuple[K, str, Payload]:
        entry: Payload = {"outcome": answer.status, "result": answer.result, "hash": digest}
        return K.ASK_REPLIED, position, entry

    async def late() -> tuple[K, str, Payload]:
        entry: Payload = {"outcome": ApprovalStatus.EXPIRED.value, "hash": digest}
        return K.ASK_TIMEOUT, position, entry

    await run.turnstile.begin(branch, verb)
    wanted = AnswerWait(verb, digest, prepare, decided, late, key=key)
    return _approval_of(*await waits.answer(branch, position, wanted))


def _check(timeout: float | None) -> None:
    if timeout is not None and not (is_length(timeout) and timeout > 0):
        said = str(timeout)[:40]
        msg = f"ctx.approval: timeout={said} is no time in seconds up to ten years; None: none"
        raise ContractError(msg)


def _begin(
    run: Recorder, position: str, digest: str, timeout: float | None
) -> tuple[str, datetime | None]:
    """Record the request. Its id depends on the arguments: a decision counts for nothing else."""
    n = run.history.sent_at(position)
    key = derive_id("approval", run.run_id, position, n, digest)
    entry: Payload = {"target": PERSON, "message_id": key, "hash": digest}
    at = None
    if timeout is not None:
        at = run.clock.now() + timedelta(seconds=timeout)
        entry |= {"timeout_s": timeout, "at": at.isoformat()}
    run.log.record(K.ASK_SENT, position, entry)
    return key, at


def _begun(place: Place | None) -> tuple[str, datetime | None] | None:
    """Return what an execution before this one has asked."""
    begun = place.begin if place is not None else None
    if begun is None:
        return None
    at = begun.payload.get("at")
    until = datetime.fromisoformat(at).astimezone(UTC) if isinstance(at, str) else None
    return str(begun.payload["message_id"]), until


def _approval_of(seq: int, payload: Payload) -> Approval:
    raise_if_refused(seq, payload)
    result = payload.get("result")
    said = result if isinstance(result, dict) else {}
    by = said.get("by")
    return Approval(
        status=ApprovalStatus(str(payload["outcome"])),
        by=None if by is None else str(by), comment=str(said.get("comment") or ""),
    )  # fmt: skip
