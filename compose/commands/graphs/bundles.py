"""`callboard graphs export|import`: write runs of flows into files, and start runs from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.workflow.errors import GraphError
from actors.workflow import Snapshot
from actors.workflow.actor.runs import FlowRuns
from compose.commands import options as opt
from compose.commands.files import writing
from compose.commands.graphs.look import AppArg, OwnerOpt, open_graph_run
from compose.commands.options import HERE, Target
from compose.commands.terminal import console
from compose.tools.graph_bundle import bundle_of, read_bundle


async def export(
    run: opt.RunIdArg,
    /,
    *,
    subruns: bool = True,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    target: Target = HERE,
) -> int:
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
    async with open_graph_run(target, run) as (runtime, runs, row):
        bundle = await bundle_of(runtime, runs, row.run_id, subruns=subruns)
    with writing(output) as file:
        json.dump(bundle, file, ensure_ascii=False)
        file.write("\n")
    told = {"run": row.run_id, "runs": len(bundle["ledgers"])}
    told["records"] = sum(one["total"] for one in bundle["ledgers"].values())
    if target.json:
        sys.stderr.write(json.dumps(told) + "\n")
    else:
        text = f"{told['runs']} run(s), {told['records']} records; content is included"
        console(stderr=True).print(text)
    return 0


async def import_run(
    app: AppArg,
    file: Path,
    /,
    *,
    check: opt.Flag = False,
    id: str | None = None,  # noqa: A002 - the name of the option
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
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
    found = read_bundle(file)
    run = found.run
    facts = {"exported": run.run_id, "flow": run.workflow_id, "status": run.status.value}
    if check:
        counts = {"runs": found.runs, "records": found.records, "head": found.head}
        text = f"{file} is complete: {found.runs} run(s), {found.records} records"
        return target.tell(
            {**facts, **counts}, f"{text}, head {found.head}; the run is {run.status.value}"
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
