"""`callboard flows check|schema`: flow documents, without a server."""

from __future__ import annotations

from pathlib import Path

from actors.workflow.documents.document import FlowDocument
from actors.workflow.documents.findings import FlowFinding
from actors.workflow.documents.reading import check_flow
from compose.commands.options import DebugFlag, Flag
from compose.commands.output import Exit, NoDataError, print_json
from compose.commands.terminal import say


def check(*files: Path, json: Flag = False, debug: DebugFlag = False) -> int:
    """Print all mistakes of flow documents. Exit code 1: there is one; warnings do not count.

    Examples: `callboard flows check refund.json flows/*.yaml`; `callboard flows check refund.json --json`

    Parameters
    ----------
    files
        Flow documents: JSON, or YAML if the name ends with .yaml or .yml.
    json
        Print one JSON object: `findings`, each with file, pointer, problem, remedy and level.
    """
    del debug  # read by `compose.cli`, for every command alike
    if not files:
        raise NoDataError("no file was named: give the path of a flow document")
    found = [one for file in files for one in _checked(file)]
    if json:
        print_json({"findings": [one.to_dict() for one in found]})
    for one in [] if json else found:
        say(f"{one.level}: {one}" if one.level == "warning" else str(one))
    is_refused = any(one.level == "error" for one in found)
    if not json and not is_refused:
        say(f"{len(files)} flow document{'s are' if len(files) > 1 else ' is'} right")
    return Exit.FAILED if is_refused else Exit.OK


def schema(*, json: Flag = False, debug: DebugFlag = False) -> int:
    """Print the JSON Schema of flow documents, for editors.

    Example: `callboard flows schema > flow.schema.json`

    Parameters
    ----------
    json
        Changes nothing: it is JSON.
    """
    del json, debug
    print_json(FlowDocument.model_json_schema())
    return Exit.OK


def _checked(file: Path) -> list[FlowFinding]:
    try:
        return check_flow(file)
    except OSError as exc:
        raise NoDataError(
            f"{file}: {exc.strerror or exc}. Give the path of a flow document"
        ) from exc
