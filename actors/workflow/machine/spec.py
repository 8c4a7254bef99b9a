"""A graph: named nodes, one of which is the entry node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from actors.kernel.workflow.durable import durable_copy, json_digest
from actors.kernel.workflow.effects import StepPlan
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState

Node: TypeAlias = Callable[[RunState, Any], StepPlan]
"""A function that gets a copy of the run, whose `vars` it may change, and the driver's context.

It returns a plan.
"""

Reducer: TypeAlias = Callable[[Any, list[Any]], Any]
"""A function that gets the value before the branches (None: there was none) and the values after the branches.

The values are those of the branches that changed it, in the order of the branches. The function returns the
value after the join.
"""


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """A graph.

    Attributes:
        workflow_id: The graph's name.
        entry_node: The node that a run begins with.
        nodes: The nodes by name.
        reducers: The reducers, by the paths of the vars that several branches may change (dots nest). Other
            vars may be changed by at most one branch of a fork.
        version: The version of the graph's code, for runs that are agents' runs. A run keeps the version that
            it began with. None: runs continue with the code that the host has.

    Raises:
        GraphError: The graph has no name, or `entry_node` is not a node.
        NotSerializableError: The name of a node is no text that can be stored.
    """

    workflow_id: str
    entry_node: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reducers: Mapping[str, Reducer] = field(default_factory=dict)
    version: str | None = None

    def __post_init__(self) -> None:
        if not self.workflow_id or not isinstance(self.workflow_id, str):
            raise GraphError("a graph", "it has no workflow_id. Give it a name")
        if self.entry_node not in self.nodes:
            problem = (
                f"its entry {self.entry_node!r} is none of its nodes. Add it, or name another one"
            )
            raise GraphError(f"graph {self.workflow_id!r}", problem)
        durable_copy([*self.nodes], f"nodes of graph {self.workflow_id!r}")

    def get_node(self, node_id: str) -> Node:
        """Return a node.

        Raises:
            KeyError: The graph has no node of this name.
        """
        if node_id not in self.nodes:
            raise KeyError(f"graph {self.workflow_id!r} has no node {node_id!r}")
        return self.nodes[node_id]

    @property
    def title(self) -> str:
        """Name and version, for a person to read."""
        of = "" if self.version is None else f" of version {self.version!r}"
        return f"flow {self.workflow_id!r}{of}"

    @property
    def hash(self) -> str:
        """The first 32 hexadecimal digits of a SHA-256 of names, entry node, and code of nodes and reducers.

        It is the same in every process with the same source text.
        """
        nodes = {name: _code_of(node) for name, node in self.nodes.items()}
        told = [self.workflow_id, self.entry_node, nodes]
        if self.reducers:
            told.append({name: _code_of(one) for name, one in self.reducers.items()})
        return json_digest(told)[:32]

    def described(self) -> dict[str, Any]:
        """Return the description of the graph for a history, as JSON data."""
        return {
            "workflow_id": self.workflow_id,
            "entry_node": self.entry_node,
            "nodes": sorted(self.nodes),
            "hash": self.hash,
        }


def _code_of(node: Node | Reducer) -> str:
    source = getattr(node, "source", None)
    if isinstance(source, str):  # a node that is data, such as a node of a flow document
        return source
    try:
        return inspect.getsource(node)
    except (OSError, TypeError):
        code = getattr(node, "__code__", None)
        return repr(node if code is None else (code.co_code, code.co_consts, code.co_names))
