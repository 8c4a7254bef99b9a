"""`callboard flows import`: report whether a flow of another program is supported."""

from __future__ import annotations

from pathlib import Path

from actors.workflow.visual.report import report_flow
from compose.commands.options import DebugFlag, Flag
from compose.commands.output import Exit, NoDataError, print_json
from compose.commands.terminal import print_table, say


def import_flow(*, report: Path, json: Flag = False, debug: DebugFlag = False) -> int:
    """Report the features that a VisualFlow uses, node by node, and the unsupported ones.

    The exit code is 1 if a feature is not supported. The command writes nothing. A flow without unsupported
    features runs without changes: pack it, or let a host serve it.

    Examples: `callboard flows import --report drawn.json`; `callboard flows import --report drawn.json --json`

    Parameters
    ----------
    report
        JSON file of the VisualFlow.
    json
        Print one JSON object: `supported`, `types`, `nodes` with id, type, needs and findings, and `findings`.
    """
    del debug  # `compose.cli` reads this option for every command
    try:
        found = report_flow(report)
    except OSError as exc:
        problem = f"{report}: {exc.strerror or exc}"
        raise NoDataError(f"{problem}. Give the path of a VisualFlow") from exc
    if json:
        print_json(found.to_dict())
        return Exit.OK if found.is_supported else Exit.FAILED
    rows = [
        (one.id, one.type, "yes" if one.is_supported else "no", one.needs or "-")
        for one in found.nodes
    ]
    print_table(("NODE", "TYPE", "SUPPORTED", "NEEDS"), rows, empty="no nodes")
    for one in [*found.others, *(each for node in found.nodes for each in node.findings)]:
        say(f"{one.level}: {one}")
    refused = sum(not one.is_supported for one in found.nodes)
    if found.is_supported:
        say(f"{found.file}: all of it is supported")
    else:
        say(f"{found.file}: not supported as it is; nodes: {refused} of {len(rows)}")
    return Exit.OK if found.is_supported else Exit.FAILED
