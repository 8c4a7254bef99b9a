"""Random graphs as flow documents: the same programs, written as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from actors.workflow import WorkflowSpec, load_flow
from tests.properties.graphs import Compiled


@dataclass
class Written(Compiled):
    """A program as flow documents. See `Compiled`."""

    @override
    def graph(self, name: str, program: list[Any]) -> WorkflowSpec:
        """Return the graph of a program, and store those of its sub-graphs."""
        output = {var: f"${{vars.{var}}}" for var in ("a", "b", "r")}
        nodes: dict[str, Any] = {"end": {"end": output}}
        entry = self._block(nodes, program, name, "end")
        document = {"flow": 1, "id": name, "start": entry, "nodes": nodes, "reducers": {"a": "add"}}
        self.specs[name] = load_flow(document)
        return self.specs[name]

    @override
    def _node(self, nodes: dict[str, Any], statement: Any, node: str, after: str) -> Any:
        kind, *words = statement
        if kind == "add":
            return {"set": {words[0]: f"${{vars.{words[0]} + {words[1]}}}"}, "next": after}
        if kind == "end":
            return nodes["end"]
        if kind == "raise":
            return {"switch": [{"when": "1 / 0", "next": after}], "else": after}
        if kind == "loop":
            body = self._block(nodes, words[1], f"{node}.body", node)
            return {"loop": words[0], "do": body, "next": after}
        if kind in {"par", "switch"}:
            ways = [
                self._block(nodes, way, f"{node}.{number}{kind[0]}", after)
                for number, way in enumerate(words[-1])
            ]
            return _forking(ways, after) if kind == "par" else _choosing(words[0], ways)
        return self._asking(kind, words, node, after)

    @override
    def _asking(self, kind: str, words: list[Any], node: str, after: str) -> Any:
        target = {"into": f"r.{node.replace('.', '_')}", "next": after}
        if kind == "work":
            self.once |= {node} if words[2] else set()
            payload = {"node": node, "fails": words[0], "value": words[1]}
            mode = "at_most_once" if words[2] else "idempotent"
            return target | {"effect": "llm_call", "with": payload, "mode": mode}
        if kind == "wait":
            self.answers[node] = words[1]
            return target | _waiting(words[0], node, self.timeout_s)
        if kind == "emit":
            self.ears += [node] if words[0] else []
            payload = {"node": node, "name": node, "scope": "global"}
            return target | {"effect": "emit_event", "with": payload}
        child = self.graph(f"{node}s", words[0]).workflow_id
        inputs = {"a": "${vars.a}", "b": 1, "r": {}}
        return target | {"flow": child, "with": inputs, "async": words[1]}


def _forking(ways: list[str], after: str) -> Any:
    if not ways:
        return {"each": [], "do": after, "join": after}
    return {"parallel": {str(number): way for number, way in enumerate(ways)}, "join": after}


def _choosing(name: str, ways: list[str]) -> Any:
    cases = [
        {"when": f"vars.{name} % {len(ways)} == {number}", "next": way}
        for number, way in enumerate(ways)
    ]
    return {"switch": cases, "else": ways[0]}


def _waiting(reason: str, node: str, timeout_s: float) -> Any:
    if reason == "user":
        return {"effect": "ask_user", "with": {"prompt": "?", "wait_key": node, "node": node}}
    if reason == "until":
        return {"effect": "wait_until", "with": {"timeout_s": timeout_s, "node": node}}
    late = {"deadline": timeout_s} if reason == "deadline" else {}
    return {"effect": "wait_event", "with": {"wait_key": node, "node": node}} | late
