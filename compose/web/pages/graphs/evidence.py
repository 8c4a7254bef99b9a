"""Evidence on the page of a run: what tools brought from outside, and each text of it as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from actors.kernel.runtime.rows import RunRow
from actors.kernel.workflow.artifacts import (
    Artifact,
    ArtifactStore,
    get_artifact_id,
    is_artifact_ref,
)
from actors.kernel.workflow.run_state import RunState
from actors.workflow.memory.evidence import evidence_in, evidence_of
from compose.web.endpoint import Done, NoQuery, WebCall
from compose.web.graphs.flows import flows_of
from compose.web.graphs.graph_runs import graph_run, present
from compose.web.problems import HttpProblem, ProblemError
from compose.web.resources.artifacts import NEVER_SHOWN

MOST_SHOWN: Final = 50
"""So many calls of tools are listed, the newest ones."""
_SOURCES: Final = ("url", "query", "command")
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceText:
    """A text that is kept of a call: its name in the evidence, and its size; None: it is not there any more."""

    name: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvidence:
    """Evidence of one call of a tool.

    Attributes:
        id: Of the evidence.
        tool: The name of the tool.
        at: When it was kept (ISO 8601).
        node: Of the graph.
        source: Its URL, query or command; empty: the tool did not say.
        error: The tool's error; empty: it succeeded.
        lack: Why no more is known of it; empty: all is.
        texts: See `EvidenceText`.
    """

    id: str
    tool: str
    at: str
    node: str
    source: str
    error: str
    lack: str
    texts: tuple[EvidenceText, ...]


def shown_evidence(call: WebCall, row: RunRow, run: RunState) -> list[ShownEvidence]:
    """Return the newest evidence of a run; empty where the store of the app's artifacts is not known.

    The store is read on the event loop, as the effects of flows do.
    """
    store, index = store_of(call, row), evidence_of(run)[-MOST_SHOWN:]
    if store is None or not index:
        return []
    return [_shown(store, one) for one in index]


async def download_evidence(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return a text of a run's evidence, to be saved and not shown: strangers wrote it.

    Raises:
        ProblemError: The run has no such evidence, or that has no such text.
    """
    row = await graph_run(call)
    run, _open = await present(call, row)
    id_, name = call.names["evidence"], call.names["text"]
    store, found = store_of(call, row), None
    if store is not None and id_ in {one["evidence_id"] for one in evidence_of(run)}:
        found = _text_in(store, id_, name)
    if found is None:
        what = f"{id_}/{name}"[:100]
        problem = f"run {row.run_id} has no evidence {what}, or it is not kept any more"
        remedy = "its page lists what is there"
        raise ProblemError(HttpProblem(404, "unknown_evidence", problem, remedy, what))
    file = quote(f"{id_}-{name}.txt", safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{file}", **NEVER_SHOWN}
    return Response(found.content, headers=headers, media_type=_TEXT)


def store_of(call: WebCall, row: RunRow) -> ArtifactStore | None:
    """Return the store of artifacts of a run's app; None: it has none here."""
    app = flows_of(call.runtime).get(row.agent_id.type)
    return None if app is None else app.artifact_store


def _texts(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of the texts of an evidence by their names."""
    found = evidence.get("artifacts")
    named = found.items() if isinstance(found, dict) else ()
    return {name: get_artifact_id(ref) for name, ref in named if is_artifact_ref(ref)}


def _text_in(store: ArtifactStore, evidence_id: str, name: str) -> Artifact | None:
    id_ = _texts(evidence_in(store, evidence_id) or {}).get(name)
    return None if id_ is None else store.load(id_)


def _shown(store: ArtifactStore, span: Mapping[str, Any]) -> ShownEvidence:
    lack, texts = "", tuple[EvidenceText, ...]()
    try:
        evidence = evidence_in(store, span["evidence_id"])
        if evidence is None:
            lack = "it is not kept any more"
        else:
            texts = tuple(_sized(store, name, id_) for name, id_ in _texts(evidence).items())
    except Exception:  # noqa: BLE001 - of a host's store: without it the page shows all else
        evidence, lack = None, "the store of artifacts does not answer"
    told = evidence or {}
    return ShownEvidence(
        id=span["evidence_id"],
        tool=span["tool_name"],
        at=span["created_at"],
        node=told.get("node_id") or "",
        source=next((one for key in _SOURCES if isinstance(one := told.get(key), str)), ""),
        error=str(told.get("error") or ""),
        lack=lack,
        texts=texts,
    )


def _sized(store: ArtifactStore, name: str, artifact_id: str) -> EvidenceText:
    found = store.get_metadata(artifact_id)
    return EvidenceText(name=name, size_bytes=None if found is None else found.size_bytes)
