"""`callboard graphs store-list|store-export|store-import`: runs in stores of the embedded driver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from actors.workflow import import_run_history_bundle
from compose.commands import options as opt
from compose.commands.graphs.bundles import write_bundle
from compose.commands.options import DebugFlag, JsonFlag
from compose.commands.output import Exit, print_json
from compose.commands.terminal import print_table, say
from compose.tools.graph_bundle import check_bundle, load_bundle
from compose.tools.graph_stores import GraphStores, graph_stores, stored_bundle

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
    del debug  # `compose.cli` reads this option for every command
    with graph_stores(store) as stores:
        rows = stores.runs.list_run_index(root_only=True, limit=limit)
    if json:
        print_json(rows)
        return
    columns = ("run", "flow", "status", "node", "session", "changed")
    cells = [[row.get(name) or "" for name in _ROW] for row in rows]
    print_table(columns, cells, empty=f"{store} has no runs")


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
    found = check_bundle(file, data, needs_chain=False)
    with graph_stores(store, create=True) as stores:
        ids = import_run_history_bundle(data, run_store=stores.runs, ledger_store=stores.ledger)
        lacking = _lacking(stores, data)
    if json:
        told = {"run": ids[0], "runs": len(ids), "records": found.records}
        print_json({**told, "status": found.run.status.value, "missing_artifacts": lacking})
        return Exit.OK
    say(f"{ids[0]} is {found.run.status.value}: {len(ids)} run(s), {found.records} records")
    if lacking:
        say(f"the file has no content of artifacts. Copy {len(lacking)}: {', '.join(lacking)}")
    return Exit.OK


def _lacking(stores: GraphStores, data: dict[str, Any]) -> list[str]:
    """Return the ids of artifacts of the bundle's runs that the stores do not have."""
    named = {
        str(one["artifact_id"])
        for ledger in data["ledgers"].values()
        for one in ledger.get("artifacts", ())
    }
    return sorted(one for one in named if stores.artifacts.get_metadata(one) is None)
