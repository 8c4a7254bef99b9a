"""Flow documents, beside JSON and its validation, the bare sandbox, and the same graph in Python.

An installed flow is found beside one read of a row, and a bundle of 50 MB is installed beside one stored copy.
"""

from __future__ import annotations

import io
import json
import secrets
import time
import zipfile
from typing import TYPE_CHECKING, Any, Final

import pydantic_monty as monty

from actors._workflow.bundles import StoredBundles, packed_flow
from actors._workflow.documents import sandbox
from actors._workflow.documents.document import FlowDocument
from actors._workflow.documents.expressions import NodeScope, parse
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    InMemoryLedgerStore,
    InMemoryRunStore,
    RuntimeConfig,
    StepPlan,
    WorkflowRuntime,
    WorkflowSpec,
    load_flow,
)
from persistence._postgres.administration.tables import SQL_GET_FLOW
from tests.benchmarks.bench import open_store, report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from persistence.postgres import PostgresStore

NODES: Final = 1_000
STEPS: Final = 2_000
INSTALLED: Final = 1_000
LARGE_BYTES: Final = 50_000_000
TENANT: Final = "default"


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for compiling, an expression, code, steps, finding an installed flow and a large install."""
    _compile(max(10, round(NODES * scale)))
    _evaluate(max(20, round(1_000 * scale)))
    _steps(max(20, round(STEPS * scale)))
    async with open_store(url) as store:
        await _resolve(store, max(5, round(INSTALLED * scale)))
        await _install(store, round(LARGE_BYTES * scale))


def _best(work: Callable[[], object], times: int = 5) -> float:
    """Return the seconds of the fastest of some calls."""
    spans = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spans.append(time.perf_counter() - began)
    return min(spans)


def _document(nodes: int) -> dict[str, Any]:
    steps: dict[str, Any] = {
        f"n{n}": {
            "effect": "tool_calls",
            "with": {"tool_calls": [{"name": "pay", "arguments": {"order": "${vars.order.id}"}}]},
            "into": f"out.n{n}",
            "retry": 3,
            "next": f"n{n + 1}",
        }
        for n in range(nodes)
    }
    steps[f"n{nodes}"] = {"end": {"paid": True}}
    return {"flow": 1, "id": "large", "version": "1", "start": "n0", "nodes": steps}


def _compile(nodes: int) -> None:
    text = json.dumps(_document(nodes))
    ours = _best(lambda: load_flow(json.loads(text)))
    floor = _best(lambda: FlowDocument.model_validate(json.loads(text)))
    report(
        benchmark="documents",
        what="compile",
        nodes=nodes,
        ms=round(ours * 1e3, 1),
        multiple=round(ours / floor, 2),
        limit_multiple=10.0,
    )


def _evaluate(times: int) -> None:
    """Report an expression and code beside a bare call of the interpreter, in a worker of its own."""
    scope = NodeScope({"n": 7}, [], "2026-01-01T00:00:00+00:00")
    inputs = {"vars": scope.vars, "branch": scope.branch, "now": scope.now}
    expression = parse("vars.n * 6 + 1")
    code = "total = 0\nfor one in range(10):\n  total += one\ntotal"
    with monty.Monty(min_processes=1) as pool:

        def bare(text: str) -> None:
            for _ in range(times):
                with pool.checkout() as session:
                    session.feed_run(text, inputs=inputs)

        def repeated(work: Callable[[], object]) -> None:
            for _ in range(times):
                work()

        measured: dict[str, tuple[Callable[[], object], str]] = {
            "expression": (lambda: expression.value(scope), expression.code),
            "code": (lambda: sandbox.evaluate(code, inputs, sandbox.SandboxLimits()), code),
        }
        for what, (work, text) in measured.items():
            work()
            ours = _best(lambda work=work: repeated(work), 3)  # type: ignore[misc]
            floor = _best(lambda text=text: bare(text), 3)  # type: ignore[misc]
            report(
                benchmark="documents",
                what=what,
                us=round(ours / times * 1e6),
                multiple=round(ours / floor, 2),
                limit_multiple=1.5,
            )


def _steps(count: int) -> None:
    """Report steps of a document in memory beside those of the same graph in Python."""
    document = {
        "flow": 1,
        "id": "steps",
        "start": "work",
        "nodes": {
            "work": {"effect": "tool_calls", "with": {"tool_calls": []}, "into": "n", "next": "on"},
            "on": {"switch": [{"when": "vars.n < vars.count", "next": "work"}], "else": "e"},
            "e": {"end": "${vars.n}"},
        },
    }

    def work(_run: Any, _ctx: Any) -> StepPlan:
        return StepPlan("work", Effect(EffectType.TOOL_CALLS, {"tool_calls": []}, "n"), "on")

    def on(run: Any, _ctx: Any) -> StepPlan:
        return StepPlan("on", next_node="work" if run.vars["n"] < run.vars["count"] else "e")

    def end(run: Any, _ctx: Any) -> StepPlan:
        return StepPlan("e", complete_output=run.vars["n"])

    plain = WorkflowSpec("plain", "work", {"work": work, "on": on, "e": end})
    ours, floor = _steps_per_s(load_flow(document), count), _steps_per_s(plain, count)
    report(
        benchmark="documents",
        what="steps",
        steps_per_s=round(ours),
        floor_per_s=round(floor),
        ratio=round(ours / floor, 3),
        goal=0.8,
    )


def _steps_per_s(spec: WorkflowSpec, count: int) -> float:
    calls = 0

    def handle(_run: Any, _effect: Effect) -> EffectOutcome:
        nonlocal calls
        calls += 1
        return EffectOutcome.completed(calls)

    runtime = WorkflowRuntime(
        run_store=InMemoryRunStore(),
        ledger_store=InMemoryLedgerStore(),
        effect_handlers={EffectType.TOOL_CALLS: handle},
        config=RuntimeConfig(max_iterations=10 * count),
    )
    run_id = runtime.start(spec, vars={"count": count // 2, "n": 0})
    began = time.perf_counter()
    state = runtime.tick(spec, run_id, max_steps=2 * count)
    took = time.perf_counter() - began
    assert state.output == count // 2, state.error
    return count / took


async def _seconds(work: Callable[[], Awaitable[object]], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        await work()
    return (time.perf_counter() - began) / times


async def _resolve(store: PostgresStore, count: int) -> None:
    """Report how long it takes to find one of many installed flows, and to list them."""
    bundles = StoredBundles(store.data.flow_bundles, store.data.artifacts, TENANT)
    for n in range(count):
        document = _document(1) | {"id": f"flow{n}"}
        await bundles.install(packed_flow(json.dumps(document).encode()))
    name = f"flow{count // 2}"
    times = min(count, 200)
    await _seconds(lambda: bundles.find_flow(f"{name}@1"), 5)

    async def read() -> object:
        return await store._links.fetch("reading", SQL_GET_FLOW, TENANT, name, "1")

    floor = await _seconds(read, times)
    ours = await _seconds(lambda: bundles.find_flow(f"{name}@1"), times)
    list_s = await _seconds(bundles.list, 3)
    report(
        benchmark="documents",
        what="resolve",
        installed=count,
        ms=round(ours * 1e3, 2),
        list_ms=round(list_s * 1e3, 1),
        multiple=round(ours / floor, 2),
        limit_multiple=2.0,
    )


async def _install(store: PostgresStore, size: int) -> None:
    """Report the install of a large bundle beside one stored copy of it."""
    packed = packed_flow(json.dumps(_document(1)).encode())
    out = io.BytesIO(packed)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("assets/large.bin", secrets.token_bytes(size))
    data = out.getvalue()
    files = store.data.artifacts.of(TENANT, "bench")
    floor = await _seconds(lambda: files.store(data, content_type="application/zip"), 1)
    bundles = StoredBundles(store.data.flow_bundles, store.data.artifacts, TENANT)
    ours = await _seconds(lambda: bundles.install(data), 1)
    report(
        benchmark="documents",
        what="install",
        mb=round(len(data) / 1e6, 1),
        seconds=round(ours, 3),
        multiple=round(ours / floor, 2),
        limit_multiple=2.0,
    )
