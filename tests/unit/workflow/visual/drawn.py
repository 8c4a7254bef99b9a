"""Short words for VisualFlow JSON, and runs of it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.workflow import (
    EffectOutcome,
    EffectType,
    InMemoryLedgerStore,
    InMemoryRunStore,
    WorkflowRuntime,
    WorkflowSpec,
    check_flow,
    compile_visualflow,
    open_waits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.workflow import RunState

EXEC = {"id": "exec-in", "type": "execution"}


def node(name: str, kind: str, *pins: str, **data: Any) -> dict[str, Any]:
    """Return a node; `pins` are its data inputs."""
    inputs = {"inputs": [EXEC, *({"id": pin} for pin in pins)]} if pins else {}
    return {"id": name, "type": kind, "data": inputs | data}


def edges(*arrows: str) -> list[dict[str, Any]]:
    """Return edges of ``a.out > b.pin``; without a pin it is one of execution."""
    wires = []
    for arrow in arrows:
        source, target = (end.strip().partition(".") for end in arrow.split(">"))
        ends = {"sourceHandle": source[2] or "exec-out", "targetHandle": target[2] or "exec-in"}
        wires.append({"source": source[0], "target": target[0], **ends})
    return wires


def flow(*nodes: dict[str, Any], wires: list[dict[str, Any]], entry: str = "s") -> dict[str, Any]:
    """Return a flow; the node ``s`` is its begin, if it is not among `nodes`."""
    names = [n["id"] for n in nodes]
    start = [] if "s" in names or entry != "s" else [node("s", "on_flow_start")]
    return {"id": "f", "nodes": [*start, *nodes], "edges": wires, "entryNode": entry}


def literal(name: str, value: Any) -> dict[str, Any]:
    """Return a node with a value."""
    return node(name, "literal_json", literalValue=value)


def setting(name: str, variable: str, **defaults: Any) -> dict[str, Any]:
    """Return a node that sets a variable."""
    return node(name, "set_var", "name", "value", pinDefaults={"name": variable, **defaults})


def reading(name: str, variable: str, default: Any = None) -> dict[str, Any]:
    """Return a node that reads a variable."""
    return node(name, "get_var", pinDefaults={"name": variable, "default": default})


def runtime(*specs: WorkflowSpec, **handlers: Any) -> WorkflowRuntime:
    """Return a runtime in memory; a handler of another name gives back its payload."""
    from actors.workflow import WorkflowRegistry  # noqa: PLC0415 - few flows have sub-flows

    registry = WorkflowRegistry()
    for spec in specs:
        registry.register(spec)
    kinds = [kind for kind in EffectType if kind.value.startswith(("memory", "llm", "tool"))]
    effect_handlers: dict[Any, Any] = {
        kind: lambda _run, effect: EffectOutcome.completed(effect.payload) for kind in kinds
    }
    effect_handlers |= {EffectType(name): handler for name, handler in handlers.items()}
    return WorkflowRuntime(
        run_store=InMemoryRunStore(),
        ledger_store=InMemoryLedgerStore(),
        effect_handlers=effect_handlers,
        workflow_registry=registry,
    )


def play(
    drawn: Mapping[str, Any],
    *answers: Any,
    variables: Mapping[str, Any] | None = None,
    **handlers: Any,
) -> RunState:
    """Run a flow to its end, or to a wait that nobody answers."""
    spec = compile_visualflow(drawn)
    driver = runtime(spec, **handlers)
    run_id = driver.start(spec, vars=dict(variables or {}))
    state = driver.tick(spec, run_id, max_steps=1000)
    for answer in answers:
        (wait, *_) = open_waits(state)
        state = driver.resume(spec, run_id, str(wait.wait_key), answer)
    return state


def output_of(drawn: Mapping[str, Any], *answers: Any, **more: Any) -> Any:
    """Return the output of a flow that ends, without its word that it did."""
    state = play(drawn, *answers, **more)
    assert state.status == "completed", state.error or state.waiting
    assert state.output["success"] is True
    return {name: value for name, value in state.output.items() if name != "success"}


def value_of(kind: str, *, pin: str = "result", **pins: Any) -> Any:
    """Return an output of a node that computes, with these values at its pins."""
    data = pins.pop("data", {})
    drawn = flow(
        node("n", kind, pinDefaults=pins, **data),
        node("e", "on_flow_end", "found"),
        wires=edges("s > e", f"n.{pin} > e.found"),
    )
    return output_of(drawn)["found"]


def problems(drawn: Mapping[str, Any]) -> list[str]:
    """Return place and problem of each finding."""
    return [f"{finding.pointer}: {finding.problem}" for finding in check_flow(drawn)]
