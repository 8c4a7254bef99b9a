"""A refund as a graph: a person decides, the bank fails once, a sub-graph writes a letter in the evening."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from actors import SystemClock
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    RetryPolicy,
    RunState,
    ScheduledRuntime,
    StepPlan,
    WorkflowSpec,
    create_scheduled_runtime,
)
from persistence.sqlite import SqliteDatabase, SqliteLedgerStore, SqliteRunStore

EVENING_S = 8 * 3600.0


def ask(run: RunState, ctx: Any) -> StepPlan:
    """Ask a person."""
    prompt = f"Refund {run.vars['euro']} €?"
    effect = Effect(EffectType.ASK_USER, {"prompt": prompt, "choices": ["yes", "no"]}, "answer")
    return StepPlan("ask", effect, next_node="decide")


def decide(run: RunState, ctx: Any) -> StepPlan:
    """Go the way of the answer."""
    return StepPlan("decide", next_node="pay" if run.vars["answer"] == "yes" else "end")


def pay(run: RunState, ctx: Any) -> StepPlan:
    """Ask the bank: twice, if need be."""
    effect = Effect(EffectType.LLM_CALL, {"euro": run.vars["euro"]}, "paid")
    return StepPlan("pay", effect, next_node="tell")


def tell(run: RunState, ctx: Any) -> StepPlan:
    """Have the letter written by a graph of its own."""
    effect = Effect(EffectType.START_SUBWORKFLOW, {"workflow_id": "letter"}, "letter")
    return StepPlan("tell", effect, next_node="end")


def end(run: RunState, ctx: Any) -> StepPlan:
    """End with what happened."""
    return StepPlan(
        "end", complete_output={"paid": run.vars.get("paid"), "letter": run.vars.get("letter")}
    )


def rest(run: RunState, ctx: Any) -> StepPlan:
    """Wait for the evening."""
    return StepPlan(
        "rest", Effect(EffectType.WAIT_UNTIL, {"timeout_s": EVENING_S}), next_node="send"
    )


def send(run: RunState, ctx: Any) -> StepPlan:
    """Send it, and not twice."""
    effect = Effect(EffectType.TOOL_CALLS, {}, "sent", EffectMode.AT_MOST_ONCE)
    return StepPlan("send", effect)


REFUND = WorkflowSpec(
    "refund", "ask", {"ask": ask, "decide": decide, "pay": pay, "tell": tell, "end": end}
)
LETTER = WorkflowSpec("letter", "rest", {"rest": rest, "send": send})


def bank(run: RunState, effect: Effect) -> EffectOutcome:
    """Stand in for a bank whose line is bad."""
    attempt = effect.payload["params"]["trace_metadata"]["attempt"]
    if attempt == 1:
        return EffectOutcome.failed("the line is bad")
    print(f"attempt {attempt}: {effect.payload['euro']} € paid")
    return EffectOutcome.completed({"euro": effect.payload["euro"]})


def post(run: RunState, effect: Effect) -> EffectOutcome:
    """Stand in for the post."""
    print("letter sent")
    return EffectOutcome.completed("sent")


class Ahead(SystemClock):
    """The clock of the evening, so that the example does not wait for it."""

    def now(self) -> datetime:
        """Return the instant, some hours later."""
        return datetime.now(UTC) + timedelta(seconds=EVENING_S)  # noqa: TID251


def opened(folder: Path, *, later: bool = False) -> ScheduledRuntime:
    """Return a runtime over the file."""
    database = SqliteDatabase(folder / "refunds.db")
    return create_scheduled_runtime(
        run_store=SqliteRunStore(database),
        ledger_store=SqliteLedgerStore(database),
        workflows=[REFUND, LETTER],
        effect_handlers={EffectType.LLM_CALL: bank, EffectType.TOOL_CALLS: post},
        effect_policy=RetryPolicy(backoff_base=0.01),
        auto_start=False,
        clock=Ahead() if later else None,
    )


def main() -> None:
    """Do one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("part", choices=["ask", "waiting", "answer", "due"])
    parser.add_argument("words", nargs="*")
    told = parser.parse_args()
    runtime = opened(told.data, later=told.part == "due")
    if told.part == "ask":
        run_id, state = runtime.run(REFUND, vars={"euro": int(told.words[0])})
        print(f"run {run_id} waits for a person: {state.waiting and state.waiting.prompt}")
    elif told.part == "due":
        runtime.scheduler.poll_once()
        runtime.scheduler.poll_once()
    for run in runtime.find_waiting_runs():
        wait = run.waiting
        if told.part == "answer" and wait is not None and wait.reason == "user":
            runtime.respond(run.run_id, told.words[0])
    for run in runtime.find_waiting_runs():
        wait = run.waiting
        if wait is not None and wait.reason != "subworkflow":
            print(f"{run.workflow_id} {run.run_id}: {wait.prompt or f'waits until {wait.until}'}")


if __name__ == "__main__":
    main()
