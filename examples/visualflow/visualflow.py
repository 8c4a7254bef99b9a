"""A flow drawn in AbstractFlow's editor, run here unchanged, by processes that get killed."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    Flows,
    HashChainedLedgerStore,
    RunState,
    ScheduledRuntime,
    compile_visualflow_tree,
    create_scheduled_runtime,
    open_waits,
    verify_ledger_chain,
)
from persistence.sqlite import SqliteDatabase, SqliteLedgerStore, SqliteRunStore

HERE: Final = Path(__file__).parent
DRAWN: Final = {
    name: json.loads((HERE / f"{name}.json").read_text("utf-8")) for name in ("offer", "delivery")
}
SPECS: Final = compile_visualflow_tree("offer", DRAWN)
TYPES: Final = {
    *("on_flow_start", "on_flow_end", "ask_user", "call_tool", "subflow", "code"),
    *("if", "switch", "loop", "parallel", "compare", "get_var", "add_to_list"),
    *("break_object", "string_template"),
}
RUN: Final = "offer-1"
SENT: Final = "VISUALFLOW_SENT"
"""The variable that names the file of sent offers; without it they are in the current folder."""
DIES: Final = "VISUALFLOW_DIES"
"""If this variable is set, the process kills itself when an offer is sent, before anything is recorded."""


def send(run: RunState, effect: Effect) -> EffectOutcome:
    """Send the offer of a run as a service of the post would: once for each run, however often it is asked."""
    file = Path(os.environ.get(SENT, "sent.jsonl"))
    is_new = run.run_id not in {one["run"] for one in posted(file) if one["sent"]}
    [call] = effect.payload["tool_calls"]
    with file.open("a", encoding="utf-8") as ledger:
        print(json.dumps({"run": run.run_id, "sent": is_new, **call["arguments"]}), file=ledger)
    if DIES in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    row = {"call_id": "1", "name": call["name"], "success": True, "output": "sent", "error": None}
    return EffectOutcome.completed({"mode": "executed", "results": [row]})


FLOWS: Final = Flows("shop", SPECS.values(), effect_handlers={EffectType.TOOL_CALLS: send})
"""What `callboard host visualflow:FLOWS` and `callboard serve visualflow:FLOWS` execute."""


def posted(file: Path) -> list[dict[str, Any]]:
    """Return what the post was asked for."""
    return (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    )


def opened(folder: Path) -> ScheduledRuntime:
    """Return a runtime over the folder's file."""
    database = SqliteDatabase(folder / "offers.db")
    return create_scheduled_runtime(
        run_store=SqliteRunStore(database),
        ledger_store=HashChainedLedgerStore(SqliteLedgerStore(database)),
        workflows=SPECS.values(),
        effect_handlers={EffectType.TOOL_CALLS: send},
        auto_start=False,
    )


def play(folder: Path) -> None:
    """Start the run, or go on with it. Its questions are printed; lines of the input are the answers."""
    runtime = opened(folder)
    runtime.runtime.start(SPECS["offer"], run_id=RUN)
    state = runtime.tick(RUN)
    while not state.status.is_terminal:
        prompts = [one.prompt for one in open_waits(state) if one.prompt]
        print(*prompts, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            return
        state = runtime.respond(RUN, {"response": answer.strip()})
    print(f"{state.status}: {json.dumps(state.output or state.error)}", flush=True)


class Player:
    """A process that plays, and takes answers."""

    def __init__(self, folder: Path, **env: str) -> None:
        words = [sys.executable, __file__, "--data", str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        path = os.pathsep.join(one for one in sys.path if one)
        told = os.environ | {SENT: str(folder / "sent.jsonl"), "PYTHONPATH": path} | env
        self.process = subprocess.Popen(words, text=True, env=told, **pipes)  # type: ignore[call-overload] # noqa: S603

    def hears(self) -> str:
        """Return the next line that it prints; empty when it is dead."""
        return str(self.process.stdout.readline()).strip()

    def told(self, answer: str) -> str:
        """Answer, and return the next line that it prints."""
        self.process.stdin.write(f"{answer}\n")
        self.process.stdin.flush()
        return self.hears()

    def ended(self) -> int:
        """Return how it ended; closes its pipes."""
        self.process.communicate()
        return int(self.process.returncode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What was seen while the run was played.

    Attributes:
        asked: The questions, in the order in which processes printed them.
        below: The states of the sub-flows while the last question was open.
        died: How the process ended that sent the offer.
    """

    asked: list[str]
    below: list[str]
    died: int


def prove(folder: Path) -> bool:
    """Play the run with two deaths; return whether all holds that is to be proved."""
    first = Player(folder)
    asked = [first.hears(), first.told("2"), first.told("1")]
    first.process.kill()
    first.ended()
    print("two of three items are answered: SIGKILL while the run waits within its loop")
    second = Player(folder, **{DIES: "1"})
    asked += [second.hears(), second.told("3")]
    runtime = opened(folder)
    children = runtime.runtime.run_store.list_children(parent_run_id=RUN)  # type: ignore[attr-defined]
    second.told("yes")
    below, died = [one.status.value for one in children], second.ended()
    print("the offer is sent: SIGKILL before anything of that is recorded")
    third = Player(folder)
    print(third.hears())
    third.ended()
    return proved(folder, runtime, Played(asked=asked, below=below, died=died))


def proved(folder: Path, runtime: ScheduledRuntime, played: Played) -> bool:
    """Print the proofs, by what was seen, what is recorded, and what the post knows."""
    state, ledger = runtime.get_state(RUN), runtime.get_ledger(RUN)
    sent = [one["sent"] for one in posted(folder / "sent.jsonl")]
    types = {node["type"] for flow in DRAWN.values() for node in flow["nodes"]}
    lines = [(one["name"], one["count"]) for one in state.vars["lines"]]
    chain, cut = verify_ledger_chain(ledger), verify_ledger_chain([*ledger[:4], *ledger[5:]])
    items = ["How many of chair?", "How many of table?", *["How many of lamp?"] * 2]
    output = {"success": True, "euro": 675, "days": 1, "by": "post", "sent": "sent"}
    proofs = {
        f"the drawing has {len(types)} types of nodes": types == TYPES,
        f"the loop asked 3 questions, the last one twice: {items[-1]}": played.asked[:-1] == items,
        f"it made {lines}": lines == [("chair", 2), ("table", 1), ("lamp", 3)],
        f"then a person was asked: {played.asked[-1]}": played.asked[-1] == "Offer 675 € to Ada?",
        f"meanwhile the sub-flow was {' '.join(played.below)}": played.below == ["completed"],
        "the process died with the offer in the post": played.died == -signal.SIGKILL,
        f"the post was asked {len(sent)} times, and sent {sum(sent)} of them": sent
        == [True, False],
        "the output is that of the drawing": state.output == output,
        f"the {chain['count']} records of the run are one chain": chain["ok"],
        "without one of them it is refused": not cut["ok"],
    }
    for text, holds in proofs.items():
        print(f"  {'proved' if holds else 'WRONG '}  {text}")
    return all(proofs.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(), help="the folder of the run")
    parser.add_argument(
        "--prove", action="store_true", help="play it with two deaths, in a new folder"
    )
    chosen = parser.parse_args()
    if chosen.prove:
        with tempfile.TemporaryDirectory() as made:
            sys.exit(not prove(Path(made)))
    play(chosen.data)
