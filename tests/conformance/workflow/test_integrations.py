"""Models, tools and knowledge of graphs on the embedded driver, over every store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from actors.errors import ContractError
from actors.kernel.agent.tools import ApprovalPolicy, Risk, Tool
from actors.kernel.secrets import Secret
from actors.kernel.workflow.errors import GraphError, StaleResumeError
from actors.storage.graphs import InMemoryGraphStore
from actors.testing import ScriptedModel
from actors.workflow import (
    EffectType,
    RunStatus,
    StepPlan,
    WaitReason,
    WorkflowSpec,
    export_run_history_bundle,
    open_waits,
)
from actors.workflow.integrations import (
    GraphStoreKnowledge,
    RemoteModel,
    hybrid_llm,
    local_llm,
    remote_llm,
)
from tests.conformance.workflow.stores import effect_then, end_node, one_effect
from tests.conformance.workflow.test_effects import Deaths, Dying
from tests.harness.chat_server import chat_server, said, wanting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors.workflow import RunState
    from actors.workflow.integrations import Integration
    from tests.conformance.workflow.stores import Stores

T = EffectType
KEY = "canary-7f3a9c-of-a-key"
CALLS = [
    {"name": "pay", "arguments": {"order": 7}, "call_id": "c1"},
    {"name": "look", "arguments": {}, "call_id": "c2"},
]
made: list[Integration] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """The loops of integrations end with the test."""
    yield
    while made:
        made.pop().close()


def noted(one: Integration) -> Integration:
    """Return an integration that is closed behind the test."""
    made.append(one)
    return one


class Till:
    """Tools that count what is paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    async def pay(self, order: int) -> str:
        """Pay an order."""
        self.paid.append(order)
        return f"paid {order}"

    async def look(self) -> dict[str, int]:
        """Look."""
        return {"paid": len(self.paid)}

    def tools(self) -> list[Tool]:
        """Return the tools: one of them is risky."""
        return [
            Tool("pay", "Pays.", self.pay, risk=Risk.HIGH),
            Tool("look", "Looks.", self.look, idempotent=True),
        ]


def played(stores: Stores, one: Integration, kind: EffectType, payload: dict[str, Any]) -> RunState:
    """Return a run of one effect, ticked once."""
    spec = one_effect(kind, payload)
    rt = stores.runtime(effect_handlers=noted(one).blocking_handlers)
    return rt.tick(spec, rt.start(spec, session_id="s"))


ASKED = {
    "system_prompt": "Be short.",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}],
    "prompt": "2 + 2?",
    "tools": ["look", {"name": "other", "parameters": {"type": "object", "properties": {}}}],
    "provider": "acme",
    "model": "m1",
    "params": {"temperature": 0.5, "max_output_tokens": 9, "seed": 3},
}


@pytest.mark.item(431)
@pytest.mark.parametrize("mode", ["local", "remote", "hybrid"])
def test_three_modes_give_one_answer(stores: Stores, mode: str) -> None:
    """The same payload, the same shape of the result; the model is asked what the payload says."""
    tools = Till().tools()
    with chat_server(said("4")) as server:
        remote = RemoteModel(server.url)
        model = ScriptedModel("4")
        one = {
            "local": lambda: local_llm(model, tools),
            "remote": lambda: remote_llm(remote, tools),
            "hybrid": lambda: hybrid_llm(remote, tools),
        }[mode]()
        state = played(stores, one, T.LLM_CALL, ASKED)

    assert state.status is RunStatus.COMPLETED, state.error
    told = state.output["out"]
    assert (told["content"], told["tool_calls"], told["provider"]) == ("4", [], "acme")
    assert {"input_tokens", "output_tokens", "total_tokens"} <= told["usage"].keys()
    if mode == "local":
        (asked,) = model.asked
        assert [(m.role, m.text) for m in asked.messages] == [
            ("system", "Be short."),
            ("user", "hi"),
            ("assistant", "yes?"),
            ("user", "2 + 2?"),
        ]
        assert [t.name for t in asked.options.tools] == ["look", "other"]
        assert (asked.options.max_tokens, asked.options.extra) == (9, {"seed": 3})
        return
    ((_, path, headers, body),) = server.asked
    assert (path, body["model"], body["provider"], body["seed"]) == (
        "/chat/completions",
        "m1",
        "acme",
        3,
    )
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "user"]
    assert [one["function"]["name"] for one in body["tools"]] == ["look", "other"]
    assert headers["idempotency-key"]
    assert (told["usage"]["total_tokens"], told["model"]) == (10, "served")
    assert state.vars["_limits"]["estimated_tokens_used"] == 10


@pytest.mark.item(431, 434)
def test_tools_are_executed_where_the_mode_says(stores: Stores) -> None:
    """In this process with a local or a hybrid model; by a client with a remote one."""
    look, payload = [Till().tools()[1]], {"tool_calls": CALLS[1:]}
    with chat_server(said()) as server:
        remote = RemoteModel(server.url)
        for one in (local_llm(ScriptedModel(), look), hybrid_llm(remote, look)):
            state = played(stores, one, T.TOOL_CALLS, payload)
            (row,) = state.output["out"]["results"]
            assert (row["success"], row["output"]) == (True, {"paid": 0})
        state = played(stores, remote_llm(remote, look), T.TOOL_CALLS, payload)
    assert state.waiting is not None
    assert state.waiting.reason is WaitReason.JOB
    assert (state.waiting.details or {})["mode"] == "passthrough"


@pytest.mark.item(431)
def test_models_are_chosen_by_name(stores: Stores) -> None:
    """By provider and model, then by one of them; a name that nobody has fails by name."""
    models = {"a:m": ScriptedModel("both"), "m": ScriptedModel("model"), "b": ScriptedModel("b")}
    for provider, model, expected in (("a", "m", "both"), ("x", "m", "model"), ("b", "y", "b")):
        payload = {"prompt": "?", "provider": provider, "model": model}
        state = played(stores, local_llm(models), T.LLM_CALL, payload)
        assert state.output["out"]["content"] == expected
    state = played(stores, local_llm(models), T.LLM_CALL, {"prompt": "?", "model": "zz"})
    assert "there is no model 'zz'" in (state.error or "")


def everything_of(stores: Stores, run_id: str, folder: Any) -> str:
    """Return all that is kept of a run: stores, traces, an export, and every file of the folder."""
    rt = stores.runtime()
    told = [rt.get_ledger(run_id), rt.get_state(run_id).vars, rt.get_node_traces(run_id)]
    told.append(
        export_run_history_bundle(
            run_id=run_id,
            run_store=stores.runs,
            ledger_store=stores.ledger,
            artifact_store=stores.artifacts,
        )
    )
    files = [
        one.read_bytes().decode(errors="replace") for one in folder.rglob("*") if one.is_file()
    ]
    return json.dumps(told, default=str) + "".join(files)


@pytest.mark.item(433)
@pytest.mark.parametrize(
    "answer",
    [
        said("done"),
        said(f"you sent {KEY}-SERVER"),
        (401, f"bad key {KEY}-ACME"),
        (200, f"<{KEY}-ACME>"),
    ],
    ids=["done", "repeated", "refused", "no json"],
)
def test_keys_are_in_headers_only(  # noqa: PLR0917 - fixtures
    stores: Stores,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
) -> None:
    """The server gets them; no store, trace, log or export has them, also where the server repeats them."""
    for name in ("SERVER", "ACME"):
        monkeypatch.setenv(f"CALLBOARD_SECRET_{name}", f"{KEY}-{name}")
    spec = one_effect(T.LLM_CALL, {"prompt": "?", "provider": "acme"})
    with chat_server(answer) as server:
        remote = RemoteModel(
            server.url, api_key=Secret("SERVER"), provider_keys={"acme": Secret("ACME")}
        )
        one = noted(remote_llm(remote))
        rt = stores.runtime(effect_handlers=one.blocking_handlers)
        run_id = rt.start(spec)
        state = rt.tick(spec, run_id)

    _, _, headers, body = server.asked[0]
    assert headers["authorization"] == f"Bearer {KEY}-SERVER"
    assert headers["x-provider-api-key"] == f"{KEY}-ACME"
    kept = everything_of(stores, run_id, tmp_path)
    assert KEY not in json.dumps(body)
    for name in ("SERVER", "ACME"):
        assert f"{KEY}-{name}" not in kept + caplog.text + repr(state) + repr(vars(remote))
    assert run_id in kept


@pytest.mark.item(433)
def test_a_repeated_key_is_replaced_by_its_name(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In answers and in errors."""
    monkeypatch.setenv("CALLBOARD_SECRET_SERVER", KEY)
    with chat_server(said(f"you sent {KEY}"), (401, f"bad key {KEY}")) as server:
        one = remote_llm(RemoteModel(server.url, api_key=Secret("SERVER")))
        state = played(stores, one, T.LLM_CALL, {"prompt": "?"})
        refused = played(stores, one, T.LLM_CALL, {"prompt": "?"})
    assert state.output["out"]["content"] == "you sent [secret SERVER]"
    assert "status 401: bad key [secret SERVER]" in (refused.error or "")


@pytest.mark.item(433)
def test_a_missing_secret_is_named(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent. One that is no header's value is named, too; keys in a payload are refused."""
    with chat_server(said()) as server:
        one = remote_llm(RemoteModel(server.url, api_key=Secret("NOWHERE")))
        state = played(stores, one, T.LLM_CALL, {"prompt": "?"})
        assert "secret NOWHERE is not known" in (state.error or "")
        monkeypatch.setenv("CALLBOARD_SECRET_NOWHERE", f"{KEY}\nx")
        state = played(stores, one, T.LLM_CALL, {"prompt": "?"})
        assert "secret NOWHERE is no value of a header" in (state.error or "")
        assert KEY not in (state.error or "")
        state = played(stores, one, T.LLM_CALL, {"prompt": "?", "params": {"api_key": KEY}})
        assert "llm_call: api_key: keys are no part of a payload" in (state.error or "")
        assert server.asked == []


@pytest.mark.item(431)
def test_what_a_model_says_is_a_result(stores: Stores) -> None:
    """Unknown tools, 200 calls, equal ids, arguments and data that are no JSON: the run goes on."""
    many = [(f"c{n}", "look", "{}") for n in range(200)]
    long = "no json\0at all\ud800" + "x" * 50_000
    deep = '{"a":' * 120 + "1" + "}" * 120
    odd = [("x", "nothing", "{}"), ("x", "look", "{oops"), ("", "look", "[1]"), *many]
    odd += [("n", "look", '{"a": NaN}'), ("d", "look", deep), ("z", "a\0b", '{"a": "\\ud800"}')]
    with chat_server(wanting(*odd), said(long), said("NaN")) as server:
        till, asked = Till(), {"prompt": "?", "response_schema": {"type": "object"}}
        one = hybrid_llm(RemoteModel(server.url), till.tools())
        nodes = {
            "work": effect_then(T.LLM_CALL, {"prompt": "?"}, key="asked", after="call"),
            "call": lambda run, ctx: effect_then(
                T.TOOL_CALLS, {"tool_calls": run.vars["asked"]["tool_calls"]}, key="got", after="as"
            )(run, ctx),
            "as": effect_then(T.LLM_CALL, asked, key="data", after="again"),
            "again": effect_then(T.LLM_CALL, asked, key="nan"),
            "end": end_node,
        }
        spec = WorkflowSpec("graph", "work", nodes)
        rt = stores.runtime(effect_handlers=noted(one).blocking_handlers)
        state = rt.tick(spec, rt.start(spec))

    assert state.status is RunStatus.COMPLETED, state.error
    rows = state.output["got"]["results"]
    assert len(rows) == len({one["call_id"] for one in rows}) == 206
    assert [one["success"] for one in rows] == [False] * 3 + [True] * 200 + [False] * 3
    assert rows[0]["error"] == "there is no tool 'nothing'. There are: look, pay"
    assert "no JSON object" in rows[1]["error"]
    assert "list, not an object" in rows[2]["error"]
    assert state.output["data"]["data"] is None
    assert state.output["data"]["content"] == "no json\\x00at all\\ud800" + "x" * 50_000
    assert "no JSON" in state.output["data"]["data_error"]
    assert "cannot be kept" in state.output["nan"]["data_error"]
    assert ["cannot be kept" in one["error"] for one in rows[-3:]] == [True] * 3


@pytest.mark.item(431)
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"choices": []}, "no choices[0].message"),
        ([1], "no choices[0].message"),
        ((503, "busy"), "status 503: busy"),
        ((302, ""), "status 302"),
        ((200, "<html>"), "the response is no JSON"),
    ],
)
def test_a_server_that_gives_no_answer_fails_the_step(
    stores: Stores, answer: Any, problem: str
) -> None:
    """By name, with the address and never with a crash of the runtime."""
    with chat_server(answer) as server:
        state = played(stores, remote_llm(RemoteModel(server.url)), T.LLM_CALL, {"prompt": "?"})
    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")


def approving(stores: Stores, till: Till, **more: Any) -> tuple[Any, WorkflowSpec, str, Any]:
    """Return runtime, graph, run and wait of calls that a person has to allow."""
    one = noted(local_llm(ScriptedModel(), till.tools()))
    rt = stores.runtime(effect_handlers=one.blocking_handlers, **more)
    spec = one_effect(T.TOOL_CALLS, {"tool_calls": CALLS})
    run_id = rt.start(spec)
    state = rt.tick(spec, run_id)
    assert till.paid == []
    return rt, spec, run_id, state.waiting


@pytest.mark.item(435)
@pytest.mark.parametrize("answer", [{"approved": True}, {"response": "Approve"}, True])
def test_an_approved_call_is_executed_once(stores: Stores, answer: Any) -> None:
    """Behind one decision; a second one is refused, and so is one about another call."""
    till = Till()
    rt, spec, run_id, wait = approving(stores, till)
    assert (wait.reason, wait.details["risks"]) == (WaitReason.USER, {"c1": "high"})
    for odd in ({"approved": "maybe"}, {}, None, {"decisions": {"c9": True}}):
        with pytest.raises(GraphError, match="answer to"):
            rt.resume(spec, run_id, wait.wait_key, odd)

    state = rt.resume(spec, run_id, wait.wait_key, answer)

    assert till.paid == [7]
    rows = state.output["out"]["results"]
    assert [(one["call_id"], one["success"], one["output"]) for one in rows] == [
        ("c1", True, "paid 7"),
        ("c2", True, {"paid": 1}),
    ]
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, answer)
    rt.tick(spec, run_id)
    assert till.paid == [7]
    told = [(one["status"], (one["effect"] or {}).get("type")) for one in rt.get_ledger(run_id)]
    assert told[1:-2] == [
        ("started", "tool_calls"),
        ("waiting", "tool_calls"),
        ("completed", "resume"),
        ("started", "tool_calls"),
        ("completed", "tool_calls"),
    ]


@pytest.mark.item(435)
def test_a_denied_call_has_an_error(stores: Stores) -> None:
    """One of two may be denied; nobody who decides in time is a denial of all."""
    till = Till()
    rt, spec, run_id, wait = approving(stores, till)
    decisions = {"decisions": {"c1": False, "c2": True}, "reason": "too much"}
    state = rt.resume(spec, run_id, wait.wait_key, decisions)
    denied, looked = state.output["out"]["results"]
    assert (denied["success"], denied["status"], denied["error"]) == (
        False,
        "denied",
        "denied: too much",
    )
    assert looked["output"] == {"paid": 0}
    assert till.paid == []


@pytest.mark.item(435)
def test_nobody_who_decides_in_time_denies(stores: Stores) -> None:
    """At the instant that the policy says, and not before."""
    till = Till()
    policy = ApprovalPolicy(timeout_s=60)
    one = noted(local_llm(ScriptedModel(), till.tools(), approvals=policy))
    rt = stores.runtime(effect_handlers=one.blocking_handlers)
    spec = one_effect(T.TOOL_CALLS, {"tool_calls": CALLS})
    run_id = rt.start(spec)
    rt.tick(spec, run_id)
    stores.clock.advance(59)
    assert rt.tick(spec, run_id).status is RunStatus.WAITING
    stores.clock.advance(1)

    rows = rt.tick(spec, run_id).output["out"]["results"]

    assert [one["error"] for one in rows] == ["denied: nobody decided in time"] * 2
    assert till.paid == []


@pytest.mark.item(431)
def test_a_tool_that_drives_its_own_integration_is_refused(stores: Stores) -> None:
    """Its thread would wait for itself; in a thread of its own it may."""
    spec, inner = (
        one_effect(T.TOOL_CALLS, {"tool_calls": [{"name": name}]}, name=name)
        for name in ("outer", "inner")
    )
    rt: Any = None

    def drive() -> Any:
        return rt.tick(inner, rt.start(inner)).error

    async def drive_here() -> Any:
        return drive()

    async def look() -> str:
        return "seen"

    told = []
    for tool in (Tool("outer", "", drive_here), Tool("outer", "", drive, thread=True)):
        one = noted(local_llm(ScriptedModel(), [tool, Tool("inner", "", look)]))
        rt = stores.runtime(effect_handlers=one.blocking_handlers)
        state = rt.tick(spec, rt.start(spec))
        told.append(state.output["out"]["results"][0]["output"])
    assert "drives a run of its own integration" in told[0]
    assert told[1] is None


@pytest.mark.item(435)
@pytest.mark.parametrize("point", ["resumed", "started", "executed", "saved"])
def test_a_death_behind_a_decision_pays_once_at_most(stores: Stores, point: str) -> None:
    """Before the call it is made by the next driver; in its middle it is in doubt, and never made again."""
    till = Till()
    _, spec, run_id, wait = approving(stores, till)
    one = noted(local_llm(ScriptedModel(), till.tools()))
    dying = stores.runtime(effect_handlers=one.blocking_handlers, fault=Dying(point))
    with pytest.raises(Deaths):
        dying.resume(spec, run_id, wait.wait_key, {"approved": True})
    rt = stores.reopen().runtime(effect_handlers=one.blocking_handlers)

    state = rt.tick(spec, run_id)

    in_doubt = point in {"started", "executed"}
    assert till.paid == ([] if point == "started" else [7])
    assert (state.status is RunStatus.FAILED) is in_doubt
    assert ("is in doubt" in (state.error or "")) is in_doubt
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, {"approved": True})


@pytest.mark.item(435)
def test_no_node_decides(stores: Stores) -> None:
    """A payload that claims a decision waits all the same."""
    till = Till()
    payload = {"tool_calls": CALLS, "_decisions": {"c1": {"approved": True}}}
    state = played(stores, local_llm(ScriptedModel(), till.tools()), T.TOOL_CALLS, payload)
    assert (state.status, till.paid) == (RunStatus.WAITING, [])


def branches(kind: EffectType, payloads: Sequence[dict[str, Any]]) -> WorkflowSpec:
    """Return a graph whose branches each have an effect."""
    names = [f"b{n}" for n in range(len(payloads))]
    nodes: dict[str, Any] = {
        name: effect_then(kind, one, key=name) for name, one in zip(names, payloads, strict=True)
    }
    nodes["fork"] = lambda _run, _ctx: StepPlan(
        "fork", parallel={one: one for one in names}, next_node="end"
    )
    return WorkflowSpec("graph", "fork", nodes | {"end": end_node})


@pytest.mark.item(435)
def test_branches_have_decisions_of_their_own(stores: Stores) -> None:
    """Each wait is answered by its own key, in another process."""
    till = Till()
    one = noted(local_llm(ScriptedModel(), till.tools()))
    calls = [{"tool_calls": [CALLS[0] | {"arguments": {"order": n}}]} for n in range(3)]
    spec = branches(T.TOOL_CALLS, calls)
    rt = stores.runtime(effect_handlers=one.blocking_handlers)
    run_id = rt.start(spec)
    rt.tick(spec, run_id)
    keys = [one.wait_key or "" for one in open_waits(rt.get_state(run_id))]
    for key, is_right in zip(keys, (True, False, True), strict=True):
        rt.answer(run_id, key, {"approved": is_right})
    assert till.paid == []
    state = stores.reopen().runtime(effect_handlers=one.blocking_handlers).tick(spec, run_id)
    assert state.status is RunStatus.COMPLETED, state.error
    assert sorted(till.paid) == [0, 2]
    told = [state.output[f"b{n}"]["results"][0]["success"] for n in range(3)]
    assert told == [True, False, True]


@pytest.mark.item(434)
def test_a_client_executes_calls(stores: Stores) -> None:
    """Its results are by call id; others, a part and a second answer are refused."""
    spec = one_effect(T.TOOL_CALLS, {"tool_calls": CALLS, "mode": "passthrough"})
    one = noted(local_llm(ScriptedModel()))
    rt = stores.runtime(effect_handlers=one.blocking_handlers)
    run_id = rt.start(spec)
    wait = rt.tick(spec, run_id).waiting
    assert wait is not None
    assert (wait.details or {})["tool_calls"] == CALLS
    right = [{"call_id": "c2", "output": 2}, {"call_id": "c1", "error": "no money"}]
    for odd, match in (
        ({"results": [{"call_id": "c9", "output": 1}]}, "about call 'c9'"),
        ({"results": right[:1]}, "one result for each"),
        ({"results": [*right, right[0]]}, "one result for each"),
        ("done", "give results"),
    ):
        with pytest.raises(GraphError, match=match):
            rt.resume(spec, run_id, wait.wait_key, odd)

    state = rt.resume(spec, run_id, wait.wait_key, {"results": right})

    assert state.output["out"] == {
        "mode": "executed",
        "results": [
            {"call_id": "c1", "name": "pay", "success": False, "output": None, "error": "no money"},
            {"call_id": "c2", "name": "look", "success": True, "output": 2, "error": None},
        ],
    }
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, {"results": right})


CACHE = ("capabilities", "set", "clear")


@pytest.mark.item(432, 433)
async def test_a_prompt_cache_is_controlled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked reaches the server, with the key of the provider in a header, and its answer comes back."""
    monkeypatch.setenv("CALLBOARD_SECRET_ACME", KEY)
    with chat_server() as server:
        for what in CACHE:
            server.answers[f"/prompt_cache/{what}"] = [(200, {"did": what})]
        remote = RemoteModel(server.url, model="m", provider_keys={"acme": Secret("ACME")})
        cache = remote_llm(remote).prompt_cache(provider="acme")
        assert await cache.capabilities() == {"supported": True, "did": "capabilities"}
        assert await cache.set("k", ttl_s=60) == {"did": "set"}
        assert await cache.clear("k") == {"did": "clear"}
    assert [(method, path) for method, path, _, _ in server.asked] == [
        ("GET", "/prompt_cache/capabilities?model=m&provider=acme"),
        ("POST", "/prompt_cache/set"),
        ("POST", "/prompt_cache/clear"),
    ]
    same = {"model": "m", "provider": "acme", "key": "k"}
    assert [body for _, _, _, body in server.asked] == [None, same | {"ttl_s": 60}, same]
    assert [one[2]["x-provider-api-key"] for one in server.asked] == [KEY] * 3


@pytest.mark.item(432)
async def test_a_model_without_such_control_refuses(stores: Stores) -> None:
    """By name; a call of it goes on all the same."""
    with chat_server(said()) as server:
        for one in (local_llm(ScriptedModel("4")), remote_llm(RemoteModel(server.url))):
            cache = one.prompt_cache()
            assert await cache.capabilities() == {"supported": False}
            for refused in (cache.set("k"), cache.clear()):
                with pytest.raises(ContractError, match="has no control of its prompt cache"):
                    await refused
            with pytest.raises(ContractError, match="give the key"):
                await cache.set("")
            state = played(stores, one, T.LLM_CALL, {"prompt": "?"})
            assert state.status is RunStatus.COMPLETED


FACTS: list[dict[str, Any]] = [
    {"subject": "Ann", "predicate": "works_at", "object": "ACME", "confidence": 0.9},
    {"subject": "Bob", "predicate": "works_at", "object": "ACME"},
    {"subject": "Ann", "predicate": "likes", "object": "Tea"},
]


@pytest.mark.item(436)
def test_knowledge_is_kept_by_a_bridge(stores: Stores) -> None:
    """Facts by their parts, in any case of letters, once each, and for their scope alone."""
    bridge = GraphStoreKnowledge(InMemoryGraphStore())

    def told(kind: EffectType, **payload: Any) -> dict[str, Any]:
        one = local_llm(ScriptedModel(), knowledge=bridge)
        state = played(stores, one, kind, {"scope": "session", **payload})
        assert state.status is RunStatus.COMPLETED, state.error
        return dict(state.output["out"])

    first = told(T.MEMORY_KG_ASSERT, assertions=FACTS)
    assert first["count"] == 3
    assert told(T.MEMORY_KG_ASSERT, assertions=FACTS) == first

    def found(**parts: Any) -> list[tuple[str, str, str]]:
        items = told(T.MEMORY_KG_QUERY, **parts)["items"]
        return sorted((one["subject"], one["predicate"], one["object"]) for one in items)

    whole = sorted((one["subject"], one["predicate"], one["object"]) for one in FACTS)
    assert found() == whole
    assert found(subject="ann") == [whole[0], whole[1]]
    assert found(object="acme", predicate="works_at") == [whole[1], whole[2]]
    assert found(predicate="likes") == [whole[0]]
    assert found(subject="Zoe") == []
    assert len(found(limit=2)) == 2
    assert found(scope="global") == []
    (ann, *_) = told(T.MEMORY_KG_RESOLVE, label="ann ")["candidates"]
    assert (ann["label"], ann["score"]) == ("Ann", 1.0)
    assert [one["label"] for one in told(T.MEMORY_KG_RESOLVE, label="cm")["candidates"]] == ["ACME"]


@pytest.mark.item(436)
@pytest.mark.parametrize(
    ("kind", "payload", "problem"),
    [
        (T.MEMORY_KG_ASSERT, {"assertions": [{"subject": "a"}]}, "assertions[0].predicate"),
        (T.MEMORY_KG_ASSERT, {"assertions": "x"}, "assertions[0]"),
        (T.MEMORY_KG_QUERY, {"scope": "mine"}, "scope"),
        (T.MEMORY_KG_QUERY, {"limit": 0}, "limit"),
        (T.MEMORY_KG_RESOLVE, {}, "label"),
    ],
)
def test_knowledge_that_cannot_be_read_fails_by_name(
    stores: Stores, kind: EffectType, payload: dict[str, Any], problem: str
) -> None:
    """Without another attempt."""
    bridge = GraphStoreKnowledge(InMemoryGraphStore())
    state = played(stores, local_llm(ScriptedModel(), knowledge=bridge), kind, payload)
    assert state.status is RunStatus.FAILED
    assert f"{kind.value}: {problem}" in (state.error or "")
