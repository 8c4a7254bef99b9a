"""A graph: named nodes, and the one that a run begins with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from actors.kernel.workflow.durable import json_digest
from actors.kernel.workflow.effects import StepPlan
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState

Node: TypeAlias = Callable[[RunState, Any], StepPlan]
"""A node: gets a copy of the run, whose `vars` it may change, and the driver's context; returns a plan."""

Reducer: TypeAlias = Callable[[Any, list[Any]], Any]
"""Gets a value as it was before the branches (None: it was not there) and, in their order, as each one that
changed it left it; returns the value behind the join."""


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """A graph.

    Attributes:
        workflow_id: Its name.
        entry_node: The node that a run begins with.
        nodes: The nodes by name.
        reducers: By the names of vars that several branches may change (dots nest): what they meet with. Others
            are changed by one branch of a fork at most.

    Raises:
        GraphError: It has no name, or no such node to begin with.
    """

    workflow_id: str
    entry_node: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reducers: Mapping[str, Reducer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.workflow_id or not isinstance(self.workflow_id, str):
            raise GraphError("a graph", "it has no workflow_id. Give it a name")
        if self.entry_node not in self.nodes:
            problem = (
                f"its entry {self.entry_node!r} is none of its nodes. Add it, or name another one"
            )
            raise GraphError(f"graph {self.workflow_id!r}", problem)

    def get_node(self, node_id: str) -> Node:
        """Return a node.

        Raises:
            KeyError: The graph has none of this name.
        """
        if node_id not in self.nodes:
            raise KeyError(f"graph {self.workflow_id!r} has no node {node_id!r}")
        return self.nodes[node_id]

    @property
    def hash(self) -> str:
        """SHA-256 of names, entry and the code of nodes and reducers: 32 hexadecimal digits.

        The same in every process that has the same source text.
        """
        nodes = {name: _code_of(node) for name, node in self.nodes.items()}
        told = [self.workflow_id, self.entry_node, nodes]
        if self.reducers:
            told.append({name: _code_of(one) for name, one in self.reducers.items()})
        return json_digest(told)[:32]

    def described(self) -> dict[str, Any]:
        """Return what a history shows of the graph: JSON data."""
        return {
            "workflow_id": self.workflow_id,
            "entry_node": self.entry_node,
            "nodes": sorted(self.nodes),
            "hash": self.hash,
        }


def _code_of(node: Node | Reducer) -> str:
    source = getattr(node, "source", None)
    if isinstance(source, str):  # a node that is data, such as one of a flow document
        return source
    try:
        return inspect.getsource(node)
    except (OSError, TypeError):
        code = getattr(node, "__code__", None)
        return repr(node if code is None else (code.co_code, code.co_consts, code.co_names))
