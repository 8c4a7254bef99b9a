"""Graphs need what `import actors` needs, and no model, no tool and no server."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.architecture.test_house_rules import CORE_DEPENDENCIES
from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = f"""
import sys
from pathlib import Path
ALLOWED = {CORE_DEPENDENCIES!r} | {{"actors", "persistence"}} | set(sys.stdlib_module_names)
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED or top in {{"asyncpg", "abstractruntime", "abstractcore", "abstractmemory"}}:
            raise ModuleNotFoundError("refused: " + name, name=name)
sys.meta_path.insert(0, Refuse())
import socket
def no_socket(*args, **more):
    raise AssertionError("a socket")
socket.socket = no_socket
import actors.workflow as w
from persistence import files, sqlite

def node(kind, payload, after):
    effect = lambda name: w.Effect(kind, payload, "r." + name)
    return lambda run, ctx: w.StepPlan(run.current_node, effect(run.current_node), after)

E = w.EffectType
child = w.WorkflowSpec("child", "end", {{"end": lambda run, ctx: w.StepPlan("end", complete_output=1)}})
spec = w.WorkflowSpec("graph", "a", {{
    "a": node(E.ANSWER_USER, {{"message": "hi"}}, "b"),
    "b": node(E.WAIT_UNTIL, {{"until": "2020-01-01T00:00:00Z"}}, "c"),
    "c": node(E.VARS_QUERY, {{"path": "x"}}, "d"),
    "d": node(E.EMIT_EVENT, {{"name": "e"}}, "e"),
    "e": node(E.START_SUBWORKFLOW, {{"workflow_id": "child"}}, "f"),
    "f": node(E.ASK_USER, {{"prompt": "?"}}, "g"),
    "g": node(E.WAIT_EVENT, {{"wait_key": "k"}}, "end"),
    "end": lambda run, ctx: w.StepPlan("end", complete_output=sorted(run.vars["r"])),
}})
here = Path(sys.argv[1])
database = sqlite.SqliteDatabase(here / "graphs.db")
for runs, ledger in (
    (w.InMemoryRunStore(), w.InMemoryLedgerStore()),
    (files.JsonFileRunStore(here), files.JsonlLedgerStore(here)),
    (sqlite.SqliteRunStore(database), sqlite.SqliteLedgerStore(database)),
):
    rt = w.create_scheduled_runtime(run_store=runs, ledger_store=ledger, workflows=[spec, child])
    run_id, state = rt.run(spec, vars={{"x": 1}})
    rt.respond(run_id, "yes")
    state = rt.respond(run_id, "now")
    rt.stop()
    assert state.output == list("abcdefg"), state
print("all of it")
"""


@pytest.mark.item(394, 395, 428, 442, 479)
def test_graphs_run_with_the_core_alone(tmp_path: Path) -> None:
    """Machine, driver, scheduler, all stores and all built-in effects, with every other library refused."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all of it\n"


def test_nothing_else_loads_graphs() -> None:
    """A program of agents does not pay for them."""
    loaded = "print([one for one in sys.modules if 'workflow' in one])"
    program = f"import sys, actors.sessions, actors._runtime.runtime; {loaded}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.stdout == "[]\n", done.stderr
