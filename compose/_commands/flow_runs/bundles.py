"""`callboard graphs export|import|inspect|replay`: runs of flows as files, and runs that such a file starts.

`callboard graphs store-list|store-export|store-import`: runs in stores of the embedded driver.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.workflow.errors import GraphError
from actors._workflow.hosted.runs import FlowRuns
from actors.errors import ContractError, UnknownRunError
from actors.workflow import RunState, Snapshot, WorkflowSpec, import_run_history_bundle
from compose._commands import options as opt
from compose._commands.files import writing
from compose._commands.flow_runs.look import AppArg, OwnerOpt
from compose._commands.options import HERE, DebugFlag, JsonFlag, Target
from compose._commands.output import Exit, NoDataError, print_json, short
from compose._commands.runs.list import open_run
from compose._commands.terminal import console, print_table, say
from compose._host.loader import ServeError, are_flows, find_served
from compose._tools.graph_bundle import (
    BundleError,
    bundle_of,
    chain_of,
    check_bundle,
    load_bundle,
    read_bundle,
    replay_states,
    runs_of,
)
from compose._tools.graph_stores import GraphStores, graph_stores, stored_bundle


async def export(
    run: opt.RunIdArg,
    /,
    *,
    subruns: bool = True,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    target: Target = HERE,
) -> Exit:
    """Write a run of a flow as a JSON bundle: the states and ledgers of the run and of the runs below it.

    The run may be open. The file has content: protect it like the database. With `--json` a summary is
    printed as JSON on standard error.

    Examples:
    `callboard graphs export 0f3c… -o run.json`;
    `callboard graphs export 0f3c… --no-subruns --data ./data > run.json`

    Parameters
    ----------
    subruns
        Include the runs below it.
    output
        The file, which is written completely or not at all. Default: standard output.
    """
    async with open_run(target, run) as (runtime, row):
        if ":" not in row.agent_id.key:
            raise UnknownRunError(run)
        runs = FlowRuns(runtime, row.agent_id.type, tenant=row.agent_id.tenant)
        bundle = await bundle_of(runtime, runs, row.run_id, subruns=subruns)
    write_bundle(bundle, output, as_json=target.json)
    return Exit.OK


def write_bundle(bundle: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    """Write a bundle to a file or to standard output, and its summary to standard error."""
    with writing(output) as file:
        json.dump(bundle, file, ensure_ascii=False)
        file.write("\n")
    summary = {"run": bundle["root_run_id"], "runs": len(bundle["ledgers"])}
    summary["records"] = sum(ledger["total"] for ledger in bundle["ledgers"].values())
    if as_json:
        sys.stderr.write(json.dumps(summary) + "\n")
    else:
        text = f"{summary['runs']} run(s), {summary['records']} records; content is included"
        console(stderr=True).print(text)


async def import_run(
    app: AppArg,
    file: Path,
    /,
    *,
    check: opt.Flag = False,
    id: str | None = None,  # noqa: A002 - the name of the option
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> Exit:
    """Start a new run of an app with the state of a bundle, and print its id. An open wait is opened again.

    The command checks the whole file first: the chains of its ledgers, and that the records of each run lead
    to its state. The new run has a ledger of its own. A bundle of an ended run starts no run, but `--check`
    verifies it.

    Examples: `callboard graphs import billing run.json --id r-8`;
    `callboard graphs import billing run.json --check`

    Parameters
    ----------
    file
        A file of `graphs export`, at most 64 MiB.
    check
        Only check the file. No server is needed.
    id
        Id of the new run. The same id again names the same run.
    """
    bundle = read_bundle(file)
    run = bundle.run
    facts = {"exported": run.run_id, "flow": run.workflow_id, "status": run.status.value}
    if check:
        counts = {"runs": bundle.runs, "records": bundle.records, "head": bundle.head}
        text = f"{file} is complete: {bundle.runs} run(s), {bundle.records} records"
        return target.tell(
            {**facts, **counts}, f"{text}, head {bundle.head}; the run is {run.status.value}"
        )
    if run.status.is_terminal:
        raise GraphError(
            f"{file}",
            f"its run is {run.status.value}: --check verifies it, `graphs start` starts a new run",
        )
    snapshot = Snapshot.from_run(run=run, name=f"import of {run.run_id}")
    async with target.client() as runtime:
        run_id = await FlowRuns(runtime, app, tenant=tenant).restore(snapshot, id=id)
    return target.tell({**facts, "run": run_id}, run_id)


def inspect(file: Path, /, *, json: JsonFlag = False, debug: DebugFlag = False) -> Exit:
    """Show the runs in a bundle, and check it: the chains of its ledgers, and that records lead to the states.

    The exit code is 1 if the bundle is incomplete or was changed. No server is needed.

    Examples: `callboard graphs inspect run.json`; `callboard graphs inspect run.json --json`

    Parameters
    ----------
    file
        A file of `graphs export` or `graphs store-export`, at most 64 MiB.
    """
    del debug  # `compose._cli` reads this option for every command
    data = load_bundle(file)
    try:
        check_bundle(file, data, needs_chain=False)
        problem = None
    except BundleError as exc:
        problem = f"{exc.place}: {exc.problem}"
    rows = [_run_row(data, state) for state in runs_of(data)]
    if json:
        facts = {"ok": problem is None, "problem": problem, "exported_at": data.get("generated_at")}
        print_json({**facts, "run": data["root_run_id"], "runs": rows})
    else:
        columns = ("run", "flow", "status", "node", "records", "chain", "head")
        print_table(columns, [[*row.values()] for row in rows], empty_text="no runs")
        say("the bundle is complete" if problem is None else f"THE BUNDLE IS WRONG: {problem}")
    return Exit.OK if problem is None else Exit.FAILED


def _run_row(data: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    chain, head = chain_of(data, state["run_id"])
    return {
        "run": state["run_id"],
        "flow": state["workflow_id"],
        "status": state["status"],
        "node": state["current_node"],
        "records": len(data["ledgers"].get(state["run_id"], {}).get("items", ())),
        "chain": chain,
        "head": head,
    }


def replay(
    file: Path,
    flows: str | None = None,
    /,
    *,
    run: str | None = None,
    json: JsonFlag = False,
    debug: DebugFlag = False,
) -> Exit:
    """Show the states of a run of a bundle one by one, as its records lead to them. No node is called.

    With FLOWS, each state must be at a node of the flow. The exit code is 1 if it is not, or if the records do
    not lead to the state in the file. No server is needed.

    Examples: `callboard graphs replay run.json`; `callboard graphs replay run.json refund.json`;
    `callboard graphs replay run.json shop.flows:APP --json`

    Parameters
    ----------
    file
        A file of `graphs export` or `graphs store-export`, at most 64 MiB.
    flows
        `MODULE:ATTR` of `Flows` or of a `WorkflowSpec`, or a flow document, a bundle of flows or a folder.
    run
        A run below the bundle's run. Default: the bundle's run.
    json
        Print one JSON object: `ok`, `problem`, `run`, `flow` and `states`, whole states of the run.
    """
    del debug
    data = load_bundle(file)
    run_id = run or data["root_run_id"]
    final_state = next((s for s in runs_of(data) if s["run_id"] == run_id), None)
    if final_state is None:
        raise NoDataError(f"{file} has no run {run_id!r}: list its runs with `graphs inspect`")
    spec = None if flows is None else spec_of(flows, final_state["workflow_id"])
    states: list[RunState] = []
    problem = None
    try:
        states = replay_states(data, final_state, spec)
    except ContractError as exc:
        problem = str(exc)
    if json:
        facts = {"run": run_id, "flow": final_state["workflow_id"]}
        states_json = [state.to_dict() for state in states]
        print_json({"ok": problem is None, "problem": problem, **facts, "states": states_json})
    else:
        cells = [(n, *_state_cells(state)) for n, state in enumerate(states)]
        if cells:
            print_table(("#", "at", "node", "status", "variables"), cells, empty_text="")
        say("the records lead to the state" if problem is None else f"THE REPLAY FAILED: {problem}")
    return Exit.OK if problem is None else Exit.FAILED


def spec_of(flows: str, name: str) -> WorkflowSpec:
    """Return the graph `name` of the flows that ``MODULE:ATTR`` or a path names.

    Raises:
        ServeError: There are no flows, or no flow of this name.
    """
    served_object = find_served(flows)
    parts = served_object if isinstance(served_object, list | tuple) else [served_object]
    specs_by_id = {part.workflow_id: part for part in parts if isinstance(part, WorkflowSpec)}
    for part in parts:
        if are_flows(part):
            specs_by_id |= part.specs
    if name not in specs_by_id:
        remedy = f"It has: {', '.join(specs_by_id) or 'no flow'}"
        raise ServeError(flows, f"it has no flow {name!r}", remedy)
    return specs_by_id[name]


def _state_cells(state: RunState) -> tuple[str, ...]:
    nodes = (
        [state.current_node]
        if state.fork is None
        else [branch.node for branch in state.fork.branches]
    )
    variables = {name: value for name, value in state.vars.items() if not name.startswith("_")}
    instant_text = state.updated_at[:19].replace("T", " ")
    return instant_text, ", ".join(nodes), state.status.value, short(variables)


StoreArg = Annotated[Path, Parameter(help="Folder (JSON files) or SQLite file of the stores.")]
_ROW = ("run_id", "workflow_id", "status", "current_node", "session_id", "updated_at")


def store_list(
    store: StoreArg,
    /,
    *,
    limit: opt.LimitOpt = 50,
    json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """List runs in the stores of an embedded driver, the last changed first. Runs below others are left out.

    Examples: `callboard graphs store-list refunds.db`; `callboard graphs store-list ./refunds --json`
    """
    del debug  # `compose._cli` reads this option for every command
    with graph_stores(store) as stores:
        rows = stores.runs.list_run_index(root_only=True, limit=limit)
    if json:
        print_json(rows)
        return
    columns = ("run", "flow", "status", "node", "session", "changed")
    cells = [[row.get(name) or "" for name in _ROW] for row in rows]
    print_table(columns, cells, empty_text=f"{store} has no runs")


def store_export(
    store: StoreArg,
    run: opt.RunIdArg,
    /,
    *,
    subruns: bool = True,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    json: JsonFlag = False,
    debug: DebugFlag = False,
) -> Exit:
    """Write a run in the stores of an embedded driver as a JSON bundle, with the runs below it.

    The run may be open, and a driver may use the stores. The file has content: protect it like the stores. With
    `--json` a summary is printed as JSON on standard error.

    Examples: `callboard graphs store-export refunds.db 0f3c… -o run.json`;
    `callboard graphs store-export ./refunds 0f3c… --no-subruns > run.json`

    Parameters
    ----------
    subruns
        Include the runs below it.
    output
        The file, which is written completely or not at all. Default: standard output.
    """
    del debug
    with graph_stores(store) as stores:
        bundle = stored_bundle(stores, run, subruns=subruns)
    write_bundle(bundle, output, as_json=json)
    return Exit.OK


def store_import(
    store: StoreArg, file: Path, /, *, json: JsonFlag = False, debug: DebugFlag = False
) -> Exit:
    """Write the runs of a bundle into the stores of an embedded driver. They keep their ids and their ledgers.

    The command checks the whole file first. Open runs continue when a driver of these stores executes them. The
    same file again changes nothing. If the command dies, call it again.

    Examples: `callboard graphs store-import refunds.db run.json`;
    `callboard graphs store-import ./refunds run.json --json`

    Parameters
    ----------
    file
        A file of `graphs export` or `graphs store-export`, at most 64 MiB.
    """
    del debug
    data = load_bundle(file)
    bundle = check_bundle(file, data, needs_chain=False)
    with graph_stores(store, create=True) as stores:
        ids = import_run_history_bundle(data, run_store=stores.runs, ledger_store=stores.ledger)
        missing_ids = _missing_artifacts(stores, data)
    if json:
        summary = {"run": ids[0], "runs": len(ids), "records": bundle.records}
        print_json({**summary, "status": bundle.run.status.value, "missing_artifacts": missing_ids})
        return Exit.OK
    say(f"{ids[0]} is {bundle.run.status.value}: {len(ids)} run(s), {bundle.records} records")
    if missing_ids:
        say(
            f"the file has no content of artifacts. Copy {len(missing_ids)}: {', '.join(missing_ids)}"
        )
    return Exit.OK


def _missing_artifacts(stores: GraphStores, data: dict[str, Any]) -> list[str]:
    """Return the ids of artifacts of the bundle's runs that the stores do not have."""
    artifact_ids = {
        str(artifact["artifact_id"])
        for ledger in data["ledgers"].values()
        for artifact in ledger.get("artifacts", ())
    }
    return sorted(
        artifact_id
        for artifact_id in artifact_ids
        if stores.artifacts.get_metadata(artifact_id) is None
    )
