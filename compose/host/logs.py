"""Log lines of a process: one line per event, for people or as JSON.

A JSON line of an agent's code names its run and its trace.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from opentelemetry import trace
from typing_extensions import override

from actors.runtime.telemetry.span_attributes import executing
from compose.host.visible import visible

_ORDINARY: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """A formatter of one line per record: time, level, message and each `extra` as `key=value`, or JSON.

    In lines for people, text of agents and clients cannot control the terminal, see `visible`.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {key: value for key, value in vars(record).items() if key not in _ORDINARY}
        trouble = self.formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            line: dict[str, object] = {
                "at": at,
                "level": record.levelname.lower(),
                "event": record.getMessage(),
                **_place(),
                **facts,
            }
            if trouble:
                line["trouble"] = trouble
            return json.dumps(line, default=str)
        words = " ".join(f"{key}={_word(value)}" for key, value in facts.items())
        text = f"{at[11:23]} {record.levelname.lower():7} {record.getMessage()} {words}".rstrip()
        return visible(f"{text}\n{trouble}" if trouble else text)


def _place() -> dict[str, object]:
    """Return the run, agent and trace of the code that writes the line; empty outside of runs."""
    run = executing.get()
    if run is None:
        return {}
    facts: dict[str, object] = {
        "run": run.run_id,
        "agent": str(run.agent_id),
        "trace_id": run.trace_id,
    }
    span = trace.get_current_span().get_span_context()
    return {**facts, "span_id": f"{span.span_id:016x}"} if span.is_valid else facts


def _word(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if not text or any(c in text for c in ' "\n=') else text


def write_logs(*, as_json: bool, level: int = logging.INFO) -> None:
    """Write the log lines of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
