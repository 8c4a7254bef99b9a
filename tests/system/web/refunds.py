"""Flows for the pages: a question, branches, a sub-graph, a failure, and undeclared moves."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from actors import Runtime
from actors._workflow.hosted.runs import FlowRuns
from actors.workflow import Effect, EffectOutcome, EffectType, Flows, StepPlan, WorkflowSpec
from compose._web.process import serve_web
from compose.web import Authentication, app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.workflow import RunState

EVIL: Final = "<script>document.title='evil'</script>\"'><img src=x onerror=alert(1)>"


def ask(_run: RunState, _ctx: Any) -> StepPlan:
    """Ask a person whether to pay."""
    payload = {"prompt": "Refund 40 EUR?", "choices": ["yes", "no"], "wait_key": "ok/1"}
    return StepPlan("ask", Effect(EffectType.ASK_USER, payload, "answer"), next_node="decide")


def decide(run: RunState, _ctx: Any) -> StepPlan:
    """Pay, or do not."""
    run.vars["agreed"] = run.vars["answer"]["response"] == "yes"
    return StepPlan("decide", next_node="pay" if run.vars["agreed"] else "end")


def pay(run: RunState, _ctx: Any) -> StepPlan:
    """Pay the refund."""
    effect = Effect(EffectType.TOOL_CALLS, {"order": run.vars["order"]}, "paid")
    return StepPlan("pay", effect, next_node="tell")


def tell(_run: RunState, _ctx: Any) -> StepPlan:
    """Send a mail and book it, concurrently."""
    return StepPlan("tell", parallel={"by mail": "mail", "in books": "book"}, next_node="end")


def mail(_run: RunState, _ctx: Any) -> StepPlan:
    """Write a mail."""
    return StepPlan("mail", Effect(EffectType.TOOL_CALLS, {"to": "ada"}, "mailed"), next_node="end")


def book(_run: RunState, _ctx: Any) -> StepPlan:
    """Book it in another graph."""
    payload = {"workflow_id": "books", "vars": {"amount": 40}}
    return StepPlan("book", Effect(EffectType.START_SUBWORKFLOW, payload, "booked"), "end")


def end(run: RunState, _ctx: Any) -> StepPlan:
    """Output the payment."""
    return StepPlan("end", complete_output={"paid": run.vars.get("paid")})


def enter(_run: RunState, _ctx: Any) -> StepPlan:
    """Wait for the books."""
    effect = Effect(EffectType.WAIT_EVENT, {"name": "opened", "scope": "global"}, "opened")
    return StepPlan("enter", effect, next_node="end")


def count(run: RunState, _ctx: Any) -> StepPlan:
    """Count up to three, then continue at the node that the vars name."""
    run.vars["n"] = n = run.vars.get("n", 0) + 1
    return StepPlan("count", next_node="count" if n < 3 else run.vars["next"])


def charge(run: RunState, _ctx: Any) -> StepPlan:
    """Ask a bank that is closed."""
    run.vars["charging"] = True
    return StepPlan("charge", Effect(EffectType.TOOL_CALLS, {"fails": True}, "x"), next_node="end")


def hurt(run: RunState, _ctx: Any) -> StepPlan:
    """Ask with the text of an attacker."""
    run.vars[EVIL] = {EVIL: [EVIL]}
    payload = {"prompt": EVIL, "choices": [EVIL], "wait_key": EVIL}
    return StepPlan(EVIL, Effect(EffectType.ASK_USER, payload, "answer"), next_node="fail")


def fail(run: RunState, _ctx: Any) -> StepPlan:
    """Fail with the text of an attacker, too."""
    raise ValueError(EVIL + str(run.vars["answer"]["response"]))


hurt.__doc__ = EVIL
NODES: Final = {
    "ask": ask,
    "decide": decide,
    "pay": pay,
    "tell": tell,
    "mail": mail,
    "book": book,
    "end": end,
}
SPECS: Final = (
    WorkflowSpec("refund", "ask", NODES),
    WorkflowSpec("books", "enter", {"enter": enter, "end": end}),
    WorkflowSpec("charges", "count", {"count": count, "charge": charge, "end": end}),
    WorkflowSpec(EVIL, EVIL, {EVIL: hurt, "fail": fail}),
)


async def done(_run: RunState, effect: Effect) -> EffectOutcome:
    """Execute it, or raise that the bank is closed."""
    if "fails" in effect.payload:
        return EffectOutcome.failed("the bank is closed", retryable=False)
    return EffectOutcome.completed({"done": dict(effect.payload)})


@asynccontextmanager
async def flows_served(*, is_guarded: bool = False) -> AsyncIterator[tuple[str, FlowRuns, Runtime]]:
    """Yield the URL of the pages of these flows, in memory, their runs, and the runtime."""
    flows = Flows("billing", SPECS, effect_handlers={EffectType.TOOL_CALLS: done})
    async with Runtime() as runtime:
        await flows.register(runtime)
        who = Authentication(runtime.store.data.tokens, runtime.clock) if is_guarded else None
        application = app(runtime, authenticate=who, is_loopback=True)
        async with serve_web(
            "127.0.0.1:0", application, before_stop=application.end_streams
        ) as url:
            yield url, FlowRuns(runtime, flows), runtime
