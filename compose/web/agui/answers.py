"""Answers of a client: to interrupts, and results of its tools. Each is delivered once, by any process."""

from __future__ import annotations

from typing import Final

from ag_ui.core import ResumeEntry

from actors.errors import UnknownApprovalError
from actors.kernel.runtime.ids import RunId
from compose.web.agui.events import RunTree
from compose.web.agui.intake import AguiInput
from compose.web.agui.snapshot import last_runs_of, tree_of
from compose.web.agui.stream import Gate, open_interrupts
from compose.web.endpoint import FoundSession, WebCall
from compose.web.problems import HttpProblem, ProblemError
from compose.web.resources.approvals import audit_decision

_WITHOUT: Final = "run it again without the answer"


class AnswerError(ProblemError):
    """An input does not fit the state of the thread. The protocol requires an error event, not a status."""


async def give_answers(
    call: WebCall, found: FoundSession, given: AguiInput
) -> tuple[RunId, Gate] | None:
    """Deliver answers to the run that waits for them; return the run, and a filter of its events.

    Return None if the input has only results of tools that are known. A repeated answer changes nothing.

    Raises:
        AnswerError: An answer does not fit.
    """
    results = {one.call_id: one for one in given.answers}
    resumed = {one.interrupt_id for one in given.resume}
    wanted = resumed | results.keys()
    for row in await last_runs_of(call, found):
        tree = await tree_of(call, found, row.run_id)
        if wanted & tree.asked:
            break
    else:
        raise _unknown(sorted(wanted))
    # A client may send the decision of an interrupt as the result of its tool call, too.
    for copy in tree.calls_of(resumed) - resumed:
        results.pop(copy, None)
    calls = tree.calls.keys()
    if unknown := sorted((results.keys() - calls) | (resumed - (tree.asked - calls))):
        raise _unknown(unknown)
    await _check_covered(call, given, tree)
    # All decisions are validated before the first answer is delivered.
    decisions = [(one, _is_approval(one)) for one in given.resume]
    own = {id_ for id_ in results if tree.calls[id_].is_asked}
    for id_ in results.keys() - own:
        if not tree.calls[id_].is_done:
            raise _refused(
                "not_a_client_tool", id_, "this tool is executed by the server", _WITHOUT
            )
    for entry, approve in decisions:
        await _decide(call, entry, approve, tree)
    for id_ in own:
        await call.runtime.approvals.give(row.run_id, id_, results[id_].result())
    answered = frozenset(resumed | own)
    known = Gate(answered, None, given.known_messages, given.known_results)
    return (row.run_id, known) if answered else None


async def _check_covered(call: WebCall, given: AguiInput, tree: RunTree) -> None:
    """Check that the input answers all open interrupts. The protocol requires all answers in one input."""
    open_ = await open_interrupts(call.runtime, tree.run_ids)
    refuse_open(open_ - {one.interrupt_id for one in given.resume})


def refuse_open(interrupts: set[str]) -> None:
    """Refuse an input if interrupts are open.

    Raises:
        AnswerError: There are open interrupts.
    """
    if interrupts:
        names = ", ".join(sorted(interrupts))
        remedy = "give an entry of `resume` for each; `cancelled` denies it"
        raise _refused("interrupts_open", names, f"the thread waits for answers to {names}", remedy)


def _is_approval(entry: ResumeEntry) -> bool:
    """Return the decision of an entry.

    Raises:
        AnswerError: The entry has no decision.
    """
    if entry.status == "cancelled":
        return False
    payload = entry.payload
    approved = payload.get("approved") if isinstance(payload, dict) else payload
    if not isinstance(approved, bool):
        problem = "the payload has no decision"
        remedy = 'give {"approved": true} or {"approved": false}, and perhaps a "comment"'
        raise _refused("invalid_answer", entry.interrupt_id, problem, remedy)
    return approved


async def _decide(call: WebCall, entry: ResumeEntry, approve: bool, tree: RunTree) -> None:
    id_, payload = entry.interrupt_id, entry.payload
    comment = payload.get("comment") if isinstance(payload, dict) else None
    if entry.status == "cancelled":
        comment = "cancelled"
    status = tree.decided.get(id_)
    if status is None:
        await audit_decision(call, RunId(tree.run_ids[0]), id_, approve=approve)
        try:
            await call.runtime.approvals.decide(
                id_, approve=approve, by=call.principal.name, comment=str(comment or "")
            )
        except UnknownApprovalError:  # another client has decided it meanwhile
            return
    elif status == "expired" and entry.status == "resolved":
        remedy = "cancel it to go on"
        raise _refused("interrupt_expired", id_, f"interrupt {id_} has expired", remedy)
    elif status != "expired" and (status == "approved") is not approve:
        raise _refused("interrupt_answered", id_, f"interrupt {id_} was {status}", _WITHOUT)


def _unknown(ids: list[str]) -> AnswerError:
    names = ", ".join(one[:100] for one in ids[:5])
    problem = f"the thread has not asked for {names}"
    return _refused("unknown_answer", names, problem, _WITHOUT)


def _refused(code: str, name: str, problem: str, remedy: str) -> AnswerError:
    return AnswerError(HttpProblem(409, code, problem, remedy, name=name))
