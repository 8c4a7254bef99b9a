"""`callboard demo`: a job that survives the death of its host, with proof."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from compose.commands.demo_view import Screen, Silence, show_proof
from compose.commands.exits import Exit
from compose.commands.output import print_json
from compose.demo.director import Director, Outcome, Stage
from compose.demo.documents import documents_in, write_default_documents

if TYPE_CHECKING:
    from collections.abc import Iterator


async def demo(
    folder: Path | None = None,
    /,
    *,
    data: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Watch a run survive kill -9, and see the proof.

    Starts embedded NATS, PostgreSQL and Valkey and a host process. Another service publishes a job as
    plain JSON; the host's agent reads text files, extracts their most telling sentences (TextRank)
    and writes a report. Half-way the host is killed with SIGKILL and another one started. A ledger
    outside the runtime counts every execution.

    Examples:
    `callboard demo`;
    `callboard demo ./notes`;
    `callboard demo --json`

    Parameters
    ----------
    folder
        Text files (.txt, .md, .rst) to read; chapters of Python's documentation when left out.
    data
        Where to keep report, ledger and database; a temporary folder when left out.
    json
        Print the proof as JSON and nothing else.
    debug
        Show the traceback of an error, and every log line.
    """
    del debug  # read by `compose.cli`, for every command alike
    with _stage(folder, data) as stage:
        outcome = await Director(stage, Silence() if json else Screen()).show()
    if json:
        print_json(_to_json(outcome))
    else:
        show_proof(outcome)
    return Exit.OK if outcome.proof.holds else Exit.FAILED


@contextmanager
def _stage(folder: Path | None, data: Path | None) -> Iterator[Stage]:
    """Yield the folder of this demo; a temporary one loses its database afterwards."""
    own = documents_in(folder.absolute()) if folder is not None else None
    if data is None:
        place = Path(tempfile.mkdtemp(prefix="callboard-demo-"))
        # PostgreSQL does not run as root: who starts it as root lends it another user's name.
        place.chmod(0o711)
    else:
        place = data.absolute()
        place.mkdir(parents=True, exist_ok=True)
    stage = Stage(place, own or write_default_documents(place / "documents"))
    try:
        yield stage
    finally:
        if data is None:
            shutil.rmtree(stage.server_folder, ignore_errors=True)


def _to_json(outcome: Outcome) -> dict[str, object]:
    return {
        "holds": outcome.proof.holds,
        "run": outcome.run_id,
        "hosts": [outcome.first_pid, outcome.second_pid],
        "killed": outcome.first_pid,
        "took_over_after_s": outcome.took_over_after_s,
        "seconds": outcome.seconds,
        "report": str(outcome.report),
        "ledger": str(outcome.ledger),
        "proof": outcome.proof.to_json(),
    }
