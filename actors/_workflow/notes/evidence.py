"""Evidence: data that tools got from outside, stored as artifacts. The index has a span for each call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from actors._kernel.json_data import clean_text
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.artifacts import ArtifactStore, artifact_ref
from actors._kernel.workflow.durable import json_digest
from actors._kernel.workflow.effects import EffectOutcome
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.attempts import sound
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.variables import RUNTIME
from actors._workflow.notes.spans import SPAN_ID, SPANS_PATH, Archive, Span, spans_of

EVIDENCE: Final = "evidence"
WARNINGS: Final = "evidence_warnings"
"""Name in `_runtime`. Its value has the calls whose evidence could not be stored, with the reasons."""
TOOLS: Final = frozenset({"web_search", "fetch_url", "execute_command"})
LONGEST_SHOWN: Final = 12_000
"""Maximum length of a tool's `rendered` text in its output, in characters. The whole text is an artifact."""
_MARK: Final = (
    "\n#TRUNCATION: rendered tool output compacted: the whole text is rendered_artifact\n"
)
_MOVED: Final = {
    "raw_text": ("raw", "raw_artifact"),
    "normalized_text": ("normalized_text", "normalized_artifact"),
    "rendered_dom": ("rendered_dom", "rendered_dom_artifact"),
    "stdout": ("stdout", "stdout_artifact"),
    "stderr": ("stderr", "stderr_artifact"),
}
"""The texts of an output that become artifacts, with their names in the evidence and in the output."""
_WITHHELD: Final = "_withheld"


class EvidenceRecorder:
    """The recorder of evidence of TOOL_CALLS.

    Args:
        artifact_store: The store of the evidence.
    """

    def __init__(self, artifact_store: ArtifactStore) -> None:
        self._store = artifact_store

    def recorded(
        self, outcome: EffectOutcome, run: RunState, opened: OpenStep, at: str
    ) -> EffectOutcome:
        """Return an outcome with references in place of large texts, and with the spans of its evidence.

        Evidence that cannot be stored becomes a warning in `_runtime.evidence_warnings`, and the result stays
        as it is. A second execution of the effect with the same result stores no second evidence.
        """
        if not any(map(_is_external, _rows(outcome.result))):
            return outcome
        outcome = sound(outcome, opened)
        told = [*_rows(outcome.result)]
        put = [*(outcome.changes or {}).get("put", ())]
        about = {"created_at": at, "run_id": run.run_id, "node_id": opened.node_id}
        for place, row in enumerate(told):
            if not _is_external(row):
                continue
            name = derive_id(opened.key, EVIDENCE, place)
            try:
                told[place], span = self._kept(row, derive_id(name, json_digest(row)), about)
                put.append([SPANS_PATH, SPAN_ID, span])
            except Exception as exc:  # noqa: BLE001 - evidence is optional: a failure of the store is a warning
                problem = clean_text(f"{type(exc).__name__}: {exc}")
                warning = {"id": name, "tool_name": row["name"], "at": at, "error": problem}
                put.append([[RUNTIME, WARNINGS], "id", warning])
        if not put:
            return outcome
        changes = {**(outcome.changes or {}), "put": put}
        return replace(outcome, result={**outcome.result, "results": told}, changes=changes)

    def _kept(
        self, row: dict[str, Any], evidence_id: str, about: dict[str, str]
    ) -> tuple[dict[str, Any], Span]:
        """Store the evidence of a call; return the call's row with references, and its span."""
        output, tool, run_id = row.get("output"), row["name"], about["run_id"]
        content = {name: row.get(name) for name in ("call_id", "success", "error")}
        if isinstance(output, dict):
            output, more = self._moved(output, run_id)
            content = more | content
        else:
            content["artifacts"] = {"results": self._text(str(output), run_id)}
        content |= {"tool_name": tool, **about}
        tags = {"kind": EVIDENCE, "tool": tool}
        archive = Archive(self._store, EVIDENCE)
        kept = archive.kept(evidence_id, content, run_id=run_id, tags=tags)
        span: Span = {"kind": EVIDENCE, SPAN_ID: evidence_id, "tool_name": tool}
        span |= dict.fromkeys(("created_at", "from_timestamp", "to_timestamp"), kept["created_at"])
        before = row.get("meta")
        meta = {**(before if isinstance(before, dict) else {}), "evidence_id": evidence_id}
        return {**row, "output": output, "meta": meta}, {**span, "tags": {"tool": tool}}

    def _moved(self, output: dict[str, Any], run_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an output with references in place of its texts, and the content of the evidence."""
        artifacts: dict[str, dict[str, str]] = {}
        left = dict(output)
        for field, (name, place) in _MOVED.items():
            if isinstance(output.get(field), str):
                left[place] = artifacts[name] = self._text(left.pop(field), run_id)
        if isinstance(output.get("content"), str):
            left["content_artifact"] = artifacts["content"] = self._text(output["content"], run_id)
        rendered = output.get("rendered")
        if isinstance(rendered, str) and len(rendered) > LONGEST_SHOWN:
            artifacts["rendered"] = self._text(rendered, run_id)
            half = (LONGEST_SHOWN - len(_MARK)) // 2
            left["rendered"] = f"{rendered[:half]}{_MARK}{rendered[-half:]}"
            left |= {"rendered_truncated": True, "rendered_chars": len(rendered)}
            left["rendered_artifact"] = artifacts["rendered"]
        texts = {*_MOVED, "content", "rendered"}
        more = {
            name: one
            for name, one in output.items()
            if name not in texts and not isinstance(one, dict | list)
        }
        withheld = {name: one for name, one in output.items() if name.endswith(_WITHHELD)}
        more["artifacts"] = artifacts
        return left, more | ({"withheld": withheld} if withheld else {})

    def _text(self, text: str, run_id: str) -> dict[str, str]:
        kept = self._store.store(text.encode(), content_type="text/plain", run_id=run_id)
        return artifact_ref(kept.artifact_id)


def _rows(result: Any) -> list[Any]:
    found = result.get("results") if isinstance(result, dict) else None
    return found if isinstance(found, list) else []


def _is_external(row: Any) -> bool:
    name = row.get("name") if isinstance(row, dict) else None
    return isinstance(name, str) and name in TOOLS


def evidence_of(run: RunState) -> list[dict[str, Any]]:
    """Return the index of a run's evidence, the oldest first. Each item has its ``evidence_id``."""
    found = [one for one in spans_of(run.vars) if one.get("kind") == EVIDENCE]
    return [{**one, "evidence_id": one[SPAN_ID]} for one in found]


def evidence_in(artifact_store: ArtifactStore | None, evidence_id: str) -> dict[str, Any] | None:
    """Return the evidence of a call. None: there is no evidence of this id.

    Raises:
        GraphError: The driver has no artifact store.
    """
    return Archive(artifact_store, EVIDENCE).load(evidence_id)
